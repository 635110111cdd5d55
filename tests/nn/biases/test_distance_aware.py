"""DistanceAware against its equation, and the three facts that the paper states of its function."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend, read
from kinformer.core.bias import Bias, Plus, ScoreFn
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, PerPair
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.biases.distance_aware import DistanceAware
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores


def bias(alpha: list[float], beta: list[float]) -> DistanceAware:
    distance_aware = DistanceAware(len(alpha))
    with torch.no_grad():
        distance_aware.alpha.copy_(torch.tensor(alpha))
        distance_aware.beta.copy_(torch.tensor(beta))
    return distance_aware


def factor(bias: DistanceAware, distance: int) -> Tensor:
    """What a score of 1 becomes at a distance, per head."""
    heads = len(bias.alpha)
    ones = torch.ones(1, heads, 1, 1)
    queries = Queries(ones, torch.tensor([[[distance]]]))
    score = bias.bind(Request(queries, Keys(ones, ones, torch.tensor([[[0]]])), Full(), Product()))
    h = torch.arange(heads)
    zero = torch.zeros_like(h)
    return score(torch.ones(heads), zero, h, zero, zero).detach()


@pytest.mark.parametrize("pattern", [Causal(), Full()])
def test_equals_a_loop_over_the_equation(pattern: Causal | Full, float64: None) -> None:
    alpha, beta = [-0.7, 0.4, 0.0], [0.3, -1.0, 2.0]
    q, k, v = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 5)
    pos = torch.arange(6)[None, None].expand(2, 1, 6)
    actual = attend(q, k, v, q_pos=pos, k_pos=pos, pattern=pattern, bias=bias(alpha, beta))
    for b in range(2):
        for h in range(3):
            for i in range(6):
                total, y = 0.0, torch.zeros(5)
                for j in range(6 if pattern == Full() else i + 1):
                    f = (1 + math.exp(beta[h])) / (1 + math.exp(beta[h] - alpha[h] * abs(i - j)))
                    weight = math.exp(max(0.0, float(q[b, h, i] @ k[b, h, j])) * f / math.sqrt(4))
                    total, y = total + weight, y + weight * v[b, h, j]
                assert torch.allclose(actual.y[b, h, i], y / total, atol=1e-12)


def test_the_function_is_1_at_0_monotone_and_bounded(float64: None) -> None:
    distance_aware = bias([-0.3, 0.3], [1.0, 1.0])
    values = torch.stack([factor(distance_aware, distance) for distance in range(200)])
    assert torch.allclose(values[0], torch.ones(2), atol=1e-15)
    assert (values[1:, 0] < values[:-1, 0]).all() and values[-1, 0] < 1e-20
    assert (values[1:100, 1] > values[:99, 1]).all()
    assert torch.allclose(values[-1, 1], torch.tensor(1 + math.e), atol=1e-12)


def test_the_relu_comes_first(float64: None) -> None:
    """A negative score stays behind a positive one however the factor grows: without the ReLU it would fall further."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([-3.0, -0.1, 0.2]).view(1, 1, 3, 1)
    v = torch.eye(3)[None, None]
    pos = torch.tensor([[[2]]]), torch.tensor([[[0, 1, 2]]])
    y = attend(q, k, v, q_pos=pos[0], k_pos=pos[1], pattern=Causal(), bias=bias([2.0], [1.0])).y[0, 0, 0]
    assert y[0] == y[1] and y[2] > y[0]


@pytest.mark.parametrize("alpha", [-1e4, 1e4])
@pytest.mark.parametrize("beta", [-200.0, 80.0])
def test_extreme_parameters_keep_values_and_gradients_finite(alpha: float, beta: float) -> None:
    layer = Attention(QKV(8, 2), Softmax(Causal(), bias([alpha, -alpha], [beta, beta])))
    x = torch.randn(2, 9, 8, requires_grad=True)
    y = layer(x, None, Context(torch.arange(9).expand(2, 9), run=True)).y
    y.square().sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_starts_without_distance_and_can_leave_that_point() -> None:
    bias = DistanceAware(2)
    q, k, v = torch.randn(3, 1, 2, 7, 4)
    pos = torch.arange(7)[None, None]
    pair = {"q_pos": pos, "k_pos": pos, "pattern": Causal()}
    assert torch.equal(factor(bias, 0), factor(bias, 50))
    attend(q, k, v, **pair, bias=bias).y.square().sum().backward()
    assert bias.alpha.grad is not None and (bias.alpha.grad != 0).all()


def test_another_number_of_heads_is_an_error() -> None:
    q = torch.zeros(1, 4, 2, 4)
    pos = torch.arange(2)[None, None]
    with pytest.raises(ValueError, match=r"got DistanceAware\(2\) in a layer of 4 heads"):
        attend(q, q, q, q_pos=pos, k_pos=pos, pattern=Causal(), bias=DistanceAware(2))


class Times(Bias):
    """A product with a learned number, with a ReLU or without, and no care for what was shut out."""

    def __init__(self, *, relu: bool) -> None:
        super().__init__()
        self.factor, self.relu = torch.nn.Parameter(torch.tensor(2.0)), relu

    def bind(self, piece: Request) -> ScoreFn:
        return lambda s, b, h, i, j: self.factor * (torch.relu(s) if self.relu else s)


def factors() -> list[Bias]:
    return [bias([-0.7, 0.4], [0.3, -1.0]), Times(relu=True), Times(relu=False)]


@pytest.mark.parametrize("n", [0, 1, 2], ids=["DistanceAware", "Times relu", "Times"])
def test_no_order_of_a_plus_opens_what_a_span_shut_out(n: int, float64: None) -> None:
    """A ReLU would make 0 of -inf, and 0 times -inf is NaN in a factor's gradient.

    Spans end hard here (ramp 1, whole spans), so both orders give the same numbers.
    """
    span, factor = AdaptiveSpan(2, 8, ramp=1.0, start=2.0), factors()[n]
    q, k, v = (torch.randn(2, 2, 9, 4, requires_grad=True) for _ in range(3))
    pos = torch.arange(9).expand(2, 1, 9)
    at = {"q_pos": pos, "k_pos": pos, "pattern": Causal()}
    first, last = (attend(q, k, v, **at, bias=Plus(*biases)) for biases in ((span, factor), (factor, span)))
    near = attend(q, k, v, q_pos=pos, k_pos=pos, pattern=Causal() & Band(2), bias=factor)
    for attended in (first, last):
        torch.testing.assert_close(attended.y, near.y, rtol=0, atol=1e-12)
        torch.testing.assert_close(attended.lse, near.lse, rtol=0, atol=1e-12)
    parameters = [q, k, v, *factor.parameters()]
    want, *rest = (
        torch.autograd.grad(attended.y.sin().sum() + attended.lse.sum(), parameters) for attended in (near, first, last)
    )
    for gradients in rest:
        torch.testing.assert_close(gradients, want, rtol=0, atol=1e-12)


def test_what_the_block_beneath_shut_out_is_not_opened(float64: None) -> None:
    q, pos = torch.randn(1, 2, 3, 4), torch.arange(3)[None, None]
    sent = PerPair(torch.randn(1, 2, 3, 3).where(torch.eye(3).bool(), -torch.inf), pos, pos)
    request = Request(Queries(q, pos), Keys(q, q, pos), Full(), ResidualScores(), factors()[0], below={"scores": sent})
    torch.testing.assert_close(read(request).y, q, rtol=0, atol=1e-12)  # each reads itself alone


@pytest.mark.parametrize("in_plus", [False, True], ids=["alone", "in a Plus"])
def test_in_bfloat16_a_row_loses_as_little_as_under_other_biases(in_plus: bool) -> None:
    """Of scores rounded to bfloat16 and multiplied, 1.8% of a read was lost where ALiBi loses 0.2%."""
    length, q, k, v = 512, *(torch.randn(1, 2, 512, 32).bfloat16() for _ in range(3))
    distance_aware, pos = bias([0.01, -0.02], [0.5, 1.0]).bfloat16(), torch.arange(length)
    alpha, beta, far = distance_aware.alpha.double(), distance_aware.beta.double(), (pos[:, None] - pos).abs()
    f = (1 + beta.exp())[:, None, None] / (1 + (beta[:, None, None] - alpha[:, None, None] * far).exp())
    score = (q.double() @ k.double().mT * 32**-0.5).relu() * f
    want = score.masked_fill(pos > pos[:, None], -torch.inf).softmax(-1) @ v.double()
    own: Bias = Plus(distance_aware) if in_plus else distance_aware
    with torch.no_grad():
        y = attend(q, k, v, q_pos=pos[None, None], k_pos=pos[None, None], pattern=Causal(), bias=own).y
    assert y.dtype == torch.bfloat16
    assert (y.double() - want).norm() < 0.004 * want.norm()
