"""SharedQK: a key is its query at unit length."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.unit_vector import unit
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.shared_qk import SharedQK
from tests.unhooked import refusals, unhooked

pytestmark = pytest.mark.usefixtures("float64")


def test_keys_are_queries_at_unit_length():
    projection = SharedQK(12, 3)
    x, pos = torch.randn(2, 5, 12), torch.arange(5).expand(2, -1)
    queries, keys = projection(x, pos, x, pos)
    q, k, v = queries.q, keys.k, keys.v
    for h in range(3):
        rows = slice(4 * h, 4 * h + 4)
        qk = x @ projection.qk.weight[rows].T + projection.qk.bias[rows]
        assert torch.allclose(q[:, h], qk, atol=1e-14)
        assert torch.allclose(k[:, h], qk / qk.square().sum(-1, keepdim=True).sqrt(), atol=1e-11)
        assert torch.allclose(v[:, h], x @ projection.v.weight[rows].T + projection.v.bias[rows], atol=1e-14)
    assert torch.allclose(k.norm(dim=-1), torch.ones(2, 3, 5), atol=1e-11)
    projection.unit = False
    assert torch.equal(projection.keys(x, pos).k, q) and torch.equal(projection.queries_and_keys(x, pos)[1].k, q)


def test_a_zero_vector_stays_zero_with_finite_gradients_in_every_precision():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        x = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
        y = unit(x)
        y.sum().backward()
        assert y.count_nonzero() == 0 and y.dtype == dtype and x.grad is not None and not x.grad.isnan().any()


def test_long_vectors_do_not_overflow_in_float16():
    assert torch.allclose(unit(torch.full((4,), 3e4, dtype=torch.float16)).double(), torch.full((4,), 0.5))


def test_softmax_decodes_under_it():
    layer = Attention(SharedQK(16, 2), Softmax(Causal()))
    x, pos = torch.randn(2, 7, 16), torch.arange(7).expand(2, -1)
    state, steps = layer.start(2, 7), []
    for t in range(7):
        out = layer(x[:, t : t + 1], state, Context(pos[:, t : t + 1], run=True))
        state = out.state
        steps.append(out.y)
    assert torch.allclose(torch.cat(steps, 1), layer(x, None, Context(pos, run=True)).y, atol=1e-13)


def test_a_width_that_does_not_split_is_refused():
    with pytest.raises(ValueError, match="d=10 is not a multiple of heads=4"):
        SharedQK(10, 4)


def test_both_is_queries_and_keys_from_one_product():
    projection, x, pos = SharedQK(12, 3, head_dim=5), torch.randn(2, 5, 12), torch.arange(5).expand(2, -1)
    products = []
    projection.qk.register_forward_hook(lambda *_: products.append(1))
    queries, keys = projection.queries_and_keys(x, pos)
    assert len(products) == 1
    apart, also = projection.queries(x, pos), projection.keys(x, pos)
    for first, other in ((queries.q, apart.q), (keys.k, also.k), (keys.v, also.v), (queries.pos, apart.pos)):
        assert torch.equal(first, other)


def test_its_matrices_by_name():
    projection = SharedQK(12, 3, bias=False)
    for name, linear in (("q", projection.qk), ("k", projection.qk), ("v", projection.v)):
        assert projection.matrix(name)[0] is linear.weight and projection.matrix(name)[1] is None


def refusal_messages():
    return refusals([lambda: SharedQK(0, 1), lambda: SharedQK(8, 0), lambda: SharedQK(8, 2, eps=-1.0)])


def test_arguments_are_checked():
    for text, start in zip(
        unhooked(f"{__name__}:{refusal_messages.__name__}"), ("d=0", "heads=0", "eps=-1.0"), strict=True
    ):
        assert text.startswith(f"ValueError: {start}")
