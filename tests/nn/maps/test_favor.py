"""FAVOR+: what kernel the features estimate, how directions are drawn, and which form peeks."""

import inspect

import pytest
import torch
from torch.nn import functional as F

from kinformer.core.attention_output import merge
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.maps.favor import FAVOR, shifted_exp
from kinformer.nn.maps.generalised import GeneralisedKernel
from kinformer.nn.maps.random_features import Directions
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
KINDS = [{}, {"hyperbolic": True}, {"orthogonal": False}, {"stabiliser": "sequence"}]


def call(mechanism, q, k, v, k_pos=None, ctx=None, state=None):
    pos = torch.arange(q.shape[2]).expand(len(q), -1)
    k_pos, ctx = pos if k_pos is None else k_pos, Context(pos, run=True) if ctx is None else ctx
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, k_pos[:, None]), state, ctx)


@pytest.mark.parametrize("keywords", KINDS)
def test_products_estimate_softmaxs_kernel_with_every_constant_added_back(keywords):
    map = FAVOR(8, 60_000, eps=0.0, **keywords)
    q, k = F.normalize(torch.randn(2, 8), dim=-1) * 1.5
    (phi_q, q_left), (phi_k, k_left) = (map(x[None, None, None], n == 0) for n, x in enumerate((q, k)))
    estimate = (phi_q * phi_k).sum() * (q_left + k_left).exp()[0, 0, 0]
    expected = (q.dot(k) / 8**0.5).exp()
    assert abs(estimate / expected - 1) < 0.03
    assert abs(estimate / q.dot(k).exp() - 1) > 0.2


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_the_map_against_a_loop(hyperbolic):
    map = FAVOR(4, 5, eps=0.01, hyperbolic=hyperbolic, seed=3)
    x = torch.randn(1, 2, 3, 4)
    phi, left = map(x, False)
    for h in range(2):
        for t in range(3):
            z = x[0, h, t] / 4**0.25
            signs = [1, -1] if hyperbolic else [1]
            kernel = torch.stack([(s * w.dot(z) - z.dot(z) / 2).exp() for s in signs for w in map.directions])
            expected = (kernel + 0.01 * kernel.max()) / len(kernel) ** 0.5
            assert torch.allclose(phi[0, h, t] * left[0, h, t].exp(), expected, atol=1e-13)


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors():
    w = FAVOR(8, 4000 * 8 - 3).directions
    for block in (w[:8], w[8:16], w[-5:]):
        gram = block @ block.T
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    assert abs(w.square().sum(1).mean() - 8) < 0.1 and w.norm(dim=1).std() > 0.5
    assert w.mean(0).abs().max() < 0.03 and (w.T @ w / len(w) - torch.eye(8)).abs().max() < 0.05


def test_orthogonal_directions_estimate_better():
    x, y = F.normalize(torch.randn(2, 8), dim=-1) * 8**0.25

    def error(orthogonal: bool) -> float:
        map = FAVOR(8, 8 * 20_000, eps=0.0, orthogonal=orthogonal)
        products = [(map.directions @ (z / 8**0.25) - z.dot(z) / 8**0.5 / 2).exp() for z in (x, y)]
        estimates = (products[0] * products[1]).view(-1, 8).mean(1)
        return float((estimates - (x.dot(y) / 8**0.5).exp()).square().mean())

    assert error(True) < 0.9 * error(False)


def test_directions_are_drawn_anew_after_so_many_steps_and_only_then():
    map, twin = FAVOR(4, 6, redraw=3, seed=5), FAVOR(4, 6, redraw=3, seed=5)
    first, directions = map.directions.clone(), []
    for _ in range(7):
        map.after_step(0.5, {})
        directions.append(map.directions.clone())
    assert all(torch.equal(directions[n], first) for n in (0, 1))
    assert torch.equal(directions[2], directions[4]) and torch.equal(directions[5], directions[6])
    assert not torch.equal(directions[2], first) and not torch.equal(directions[5], directions[2])
    twin.load_state_dict(map.state_dict())
    for _ in range(2):
        map.after_step(1.0, {}), twin.after_step(1.0, {})
    assert torch.equal(map.directions, twin.directions) and not torch.equal(map.directions, directions[6])
    never = FAVOR(4, 6)
    never.after_step(1.0, {})
    assert torch.equal(never.directions, FAVOR(4, 6).directions)


def test_a_far_field_by_features_merges_with_near_keys_by_softmax():
    """Half of the keys are read exactly and half by features: near softmax over all, nearer than features alone."""
    q, k, v = 0.4 * torch.randn(3, 1, 2, 12, 8)
    pos = torch.arange(12)[None]
    linear = FullLinearAttention(FAVOR(8, 20_000, eps=0.0))

    def read(mechanism, k_pos):
        return call(mechanism, q, k, v, k_pos).y

    exact = read(Softmax(Full()), pos)
    merged = merge(read(Softmax(Full()), pos.masked_fill(pos < 6, -1)), read(linear, pos.masked_fill(pos >= 6, -1)))
    assert (merged.y - exact.y).abs().max() < 0.01 and (merged.lse - exact.lse).abs().max() < 0.02
    assert (merged.y - exact.y).norm() < 0.9 * (read(linear, pos).y - exact.y).norm()


def moved_by_later_tokens(stabiliser):
    """How much the outputs up to token 5 change when every later token is drawn anew."""
    layer = Attention(QKV(16, 2), LinearAttention(FAVOR(8, 16, eps=1e-4, stabiliser=stabiliser)))
    x = 3 * torch.randn(2, 12, 16)
    other = torch.cat([x[:, :6], 3 * torch.randn(2, 6, 16)], 1)
    return (layer(x).y - layer(other).y)[:, :6].abs().max()


def test_what_the_published_stabiliser_does_is_peeking():
    assert moved_by_later_tokens("token") == 0
    assert moved_by_later_tokens("sequence") > 1e-6


def test_large_vectors_do_not_overflow():
    for stabiliser in ("token", "sequence"):
        x = (30 * torch.randn(1, 1, 5, 8)).float().requires_grad_()
        y = call(LinearAttention(FAVOR(8, 16, stabiliser=stabiliser).float()), x, x / 10, x).y.y
        y.sum().backward()
        assert y.isfinite().all() and x.grad.isfinite().all()


def in_pieces(mechanism, q, k, v, cuts):
    """The read of a row cut into pieces, its state carried: chunks and steps."""
    width = q.shape[-1]
    spec = StateSpec(len(q), q.shape[2], q.dtype, q.device)
    state, reads = mechanism.start(spec, HeadSizes(q.shape[1], k.shape[1], k.shape[1], width, v.shape[-1])), []
    for at in torch.arange(q.shape[2]).split(cuts):
        pos = at.expand(len(q), -1)
        out = call(mechanism, q[:, :, at], k[:, :, at], v[:, :, at], pos, Context(pos, run=True), state)
        state = out.state
        reads.append(out.y)
    return torch.cat([r.y for r in reads], 2), torch.cat([r.lse for r in reads], 2)


FORMS = {
    "full": lambda map, *x: call(FullLinearAttention(map), *x).y,
    "whole": lambda map, *x: call(LinearAttention(map, piece=4), *x).y,
    "chunks": lambda map, *x: in_pieces(LinearAttention(map), *x, [5, 4, 3]),
    "steps": lambda map, *x: in_pieces(LinearAttention(map), *x, [1] * 12),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_key_aligned_with_a_direction_does_not_overflow(form):
    """A10: at K=256 its weight is beyond float32's range; kept apart, it is found, and the lse is exact."""
    map, (q, k, v) = FAVOR(256, 64), torch.randn(3, 2, 1, 12, 256)
    k[:, :, 6] = 4 * map.directions[3]
    assert (map(k, False)[1] > 100).any(), "a weight that float32 does not hold"
    (y, lse), (exact, exact_lse) = (form(map.to(dtype), *(x.to(dtype) for x in (q, k, v))) for dtype in DTYPES)
    assert y.isfinite().all() and lse.isfinite().all()
    assert (y.double() - exact).abs().max() < 1e-4 and (lse.double() - exact_lse).abs().max() < 1e-3


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_query_is_left_empty_by_small_weights(form):
    """A10: keys of std 6 at K=64 weigh exp(-100) and less, which float32 rounds to nothing."""
    map, q, k, v = FAVOR(64, 64), torch.randn(4, 2, 12, 64), 6 * torch.randn(4, 2, 12, 64), torch.randn(4, 2, 12, 64)
    assert (map(k, False)[1] < -104).any(), "a weight that float32 does not hold"
    (y, lse), (exact, exact_lse) = (form(map.to(dtype), *(x.to(dtype) for x in (q, k, v))) for dtype in DTYPES)
    assert (exact_lse > -torch.inf).all() and (lse > -torch.inf).all()
    assert (y.double() - exact).abs().max() < 1e-3 and (lse.double() - exact_lse).abs().max() < 1e-3


@pytest.mark.parametrize("hyperbolic", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("k_dim", [8, 256, 1024])
def test_single_precision_stays_finite_at_any_width(k_dim, eps, hyperbolic):
    """A10: in values and gradients, for long vectors and one along a direction; with its eps no query is left empty."""
    map, (q, k, v) = FAVOR(k_dim, 32, eps=eps, hyperbolic=hyperbolic), 30 * torch.randn(3, 1, 2, 9, k_dim)
    k[:, :, 4] = 100 * map.directions[3]
    for form in (LinearAttention, FullLinearAttention):
        leaves_in = [x.float().requires_grad_() for x in (q, k, v)]
        read = call(form(map.float()), *leaves_in).y
        assert read.y.isfinite().all() and not (read.lse.isnan() | read.lse.isposinf()).any()
        assert all(tensor.isfinite().all() for tensor in torch.autograd.grad(read.y.square().sum(), leaves_in))
        assert not eps or read.lse.isfinite().all()


DTYPES = (torch.float32, torch.float64)


def test_equal_lengths_are_the_root_of_the_width():
    """A10: the paper's regularised kernel, section 2.4 of the published code (`scaling=1`)."""
    map = FAVOR(8, 20, lengths="equal", redraw=1)
    for _ in range(2):
        assert torch.allclose(map.directions.norm(dim=1), torch.full((20,), 8**0.5), atol=1e-5)
        assert (map.directions[:8] @ map.directions[:8].T - 8 * torch.eye(8)).abs().max() < 1e-5
        map.after_step(0.5, {})


def test_an_unknown_word_is_refused():
    """A2, as outside of the tests, where nothing checks annotations: "tokens" used to mean "sequence", and peeked."""
    with pytest.raises(ValueError, match="stabiliser='tokens' is not known; choose 'token' or 'sequence'"):
        inspect.unwrap(FAVOR.__init__)(FAVOR.__new__(FAVOR), 4, stabiliser="tokens")
    with pytest.raises(ValueError, match="lengths='unit' is not known; choose 'normal' or 'equal'"):
        inspect.unwrap(Directions.__init__)(FAVOR.__new__(FAVOR), 4, 8, True, "unit", None, 0)


def test_errors_say_what_to_do():
    x = torch.zeros(1, 1, 1, 8)
    with pytest.raises(ValueError, match="Create it with k_dim=8"):
        FAVOR(4)(x, True)
    with pytest.raises(ValueError, match=r"^eps=-1\.0: give a number from 0"):
        FAVOR(4, eps=-1.0)
    with pytest.raises(ValueError, match="at least 1"):
        GeneralisedKernel(4, redraw=0)
    with pytest.raises(ValueError, match="^directions=0: give"):
        FAVOR(4, 0)
    with pytest.raises(ValueError, match="must be positive and finite"):
        GeneralisedKernel(4, eps=0.0)


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_the_features_own_backward_is_that_of_what_they_are(shape):
    u, shift = (torch.randn(*size, requires_grad=True) for size in ((2, 3, 4), (2, 3)))
    floor = torch.rand(shape, requires_grad=bool(shape))  # a number learns nothing
    want = (u + shift[..., None]).exp() + floor[..., None]
    torch.testing.assert_close(shifted_exp(u, shift, floor), want)
    inputs = (u, shift, floor) if shape else (u, shift)
    direction = torch.randn_like(want)
    gradients, expected = (torch.autograd.grad(y, inputs, direction) for y in (shifted_exp(u, shift, floor), want))
    torch.testing.assert_close(gradients, expected)
