"""Adaptive and dynamic spans against their equations: weights times a ramp, renormalised."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.biases.adaptive_span import AdaptiveSpan, DynamicSpan, Ramp
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.execute import attend
from kinformer.losses.span import SPAN
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal

POS = torch.tensor([[[0, 1, 2, 3, 4, 5, 6, 7, 8]], [[-1, -1, 0, 1, 2, 3, 4, 5, 6]]])


def spans(*z: float, longest: int = 6, ramp: float = 3.0, nearest: int = 0, itself: bool = True) -> AdaptiveSpan:
    made = AdaptiveSpan(len(z), longest, ramp=ramp, nearest=nearest, itself=itself)
    with torch.no_grad():
        made.span.copy_(torch.tensor(z))
    return made


@torch.no_grad()
def naive(q: Tensor, k: Tensor, v: Tensor, z: Tensor, bias: Ramp) -> Tensor:
    """m_z(x) exp(s) over its sum, one query at a time; z [B H T]."""
    y = torch.zeros_like(v)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        total = 0.0
        for j in range(i + 1):
            x = int(POS[b, 0, i] - POS[b, 0, j])
            if POS[b, 0, j] < 0 or x > bias.longest or (x == 0 and not bias.itself):
                continue
            m = min(max((bias.ramp + float(z[b, h, i]) - (x - bias.nearest)) / bias.ramp, 0.0), 1.0)
            weight = m * math.exp(q[b, h, i] @ k[b, h, j] / math.sqrt(q.shape[-1]))
            total, y[b, h, i] = total + weight, y[b, h, i] + weight * v[b, h, j]
        y[b, h, i] /= total or 1.0
    return y


@pytest.mark.parametrize("nearest", [0, 1])
@pytest.mark.parametrize("itself", [True, False])
def test_static_equals_a_loop_over_the_equation(nearest: int, itself: bool, float64: None) -> None:
    bias = spans(0.0, 1.3, 6.0, nearest=nearest, itself=itself)
    q, k, v = torch.randn(3, 2, 3, 9, 4)
    y = attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal() & Band(6), bias=bias).y
    assert torch.allclose(y, naive(q, k, v, bias.span.detach()[None, :, None].expand(2, 3, 9), bias), atol=1e-12)


@pytest.mark.parametrize("itself", [True, False])
def test_dynamic_equals_a_loop_over_the_equation(itself: bool, float64: None) -> None:
    bias = DynamicSpan(6, ramp=2.5, itself=itself)
    q, k, v = torch.randn(3, 2, 3, 9, 4)
    side = 2 * torch.randn(2, 3, 9, 1)
    y = attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal() & Band(6), bias=bias, sides={"span": side}).y
    z = torch.tensor([[[6 / (1 + math.exp(-s)) for s in row] for row in rows] for rows in side[..., 0].tolist()])
    assert torch.allclose(y, naive(q, k, v, z, bias), atol=1e-12)


def test_dynamic_spans_come_from_the_layers_input(float64: None) -> None:
    """z_t = S sigmoid(v.x_t + b), one v and b per head; its mean over heads is reported for each token."""
    bias = DynamicSpan(5, ramp=2)
    layer = Attention(8, 2, Softmax(Causal() & Band(5), bias), out=False)
    x, pos = torch.randn(2, 9, 8), POS[:, 0]
    out = layer(x, None, Context(pos, run=True))
    assert layer.side is not None
    z = 5 * torch.sigmoid(torch.einsum("btd,hd->bht", x, layer.side.weight) + layer.side.bias[:, None])
    assert torch.allclose(out.aux["span"], z.mean(1), atol=1e-12)
    heads = naive(*layer.projection(x, pos, x, pos), z, bias)
    assert torch.allclose(out.y, heads.transpose(1, 2).flatten(2), atol=1e-12)


@pytest.mark.parametrize("z", [0.0, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("itself", [True, False])
def test_an_integer_span_gives_no_nan(z: float, itself: bool) -> None:
    """A key where the ramp ends has weight 0: its log must not reach values or gradients, nor must an empty row."""
    bias = spans(z, z, ramp=2.0, itself=itself)
    q, k, v = (torch.randn(2, 2, 9, 4, requires_grad=True) for _ in range(3))
    read = attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal(), bias=bias)
    read.y.square().sum().backward()
    assert read.y.isfinite().all()
    for leaf in (q, k, v, bias.span):
        assert leaf.grad is not None and leaf.grad.isfinite().all()
    assert (read.y[0, :, 0] != 0).all() if itself else (read.y[0, :, 0] == 0).all()
    assert (read.y[0, :, 1:] != 0).all()


def test_a_span_gets_the_gradient_of_its_ramp(float64: None) -> None:
    bias = spans(0.7, 1.6, ramp=2.5)
    q, k, v = torch.randn(3, 2, 2, 9, 4)

    def total(span: Tensor) -> Tensor:
        given = {"bias.span": span}
        return torch.func.functional_call(_Reader(bias), given, (q, k, v))

    assert torch.autograd.gradcheck(total, (bias.span.detach().requires_grad_(),))


class _Reader(torch.nn.Module):
    def __init__(self, bias: Ramp):
        super().__init__()
        self.bias = bias

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal(), bias=self.bias).y.square().sum()


def test_keys_beyond_the_ramp_are_not_needed(float64: None) -> None:
    """Whatever z is, a key at z + ramp or further counts for nothing: a window of that size is exact."""
    bias = spans(1.0, 2.5, ramp=3.0)
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    whole, near, nearer = (
        attend(q, k, v, q_pos=POS, k_pos=POS, pattern=pattern, bias=bias).y
        for pattern in (Causal(), Causal() & Band(5), Causal() & Band(4))
    )
    assert torch.equal(whole, near) and not torch.allclose(whole, nearer)


@pytest.mark.parametrize("nearest", [0, 1])
def test_the_pattern_excludes_the_query_as_the_keyword_does(nearest: int, float64: None) -> None:
    q, k, v = torch.randn(3, 2, 2, 9, 4)

    def read(pattern: Pattern, itself: bool) -> Tensor:
        bias = spans(1.0, 2.5, nearest=nearest, itself=itself)
        return attend(q, k, v, q_pos=POS, k_pos=POS, pattern=pattern, bias=bias).y

    assert torch.equal(read(Causal() & Band(6), False), read(Band(6, -1), True))
    assert not torch.allclose(read(Causal() & Band(6), False), read(Causal() & Band(6), True))


@pytest.mark.parametrize("itself", [True, False])
def test_chunks_equal_the_whole_with_a_cache_of_the_longest_span(itself: bool, float64: None) -> None:
    layer = Attention(8, 2, Softmax(Causal() & Band(6), spans(1.0, 4.5, itself=itself)))
    x, pos = torch.randn(2, 20, 8), torch.arange(20).expand(2, 20)
    whole = layer(x, None, Context(pos, run=True)).y
    state, pieces = layer.start(2, 20, dtype=x.dtype), []
    for lo, hi in ((0, 1), (1, 4), (4, 5), (5, 16), (16, 20)):
        out = layer(x[:, lo:hi], state, Context(pos[:, lo:hi], run=True))
        state = out.state
        pieces.append(out.y)
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-12)
    assert state.pos.shape[1] == 7


def test_after_a_step_spans_lie_between_0_and_the_longest() -> None:
    bias = spans(-2.0, 3.5, 9.0)
    parameter = bias.span
    bias.after_step(0.5, {})
    assert bias.span is parameter and bias.span.tolist() == [0.0, 3.5, 6.0]
    assert bias.span.requires_grad and AdaptiveSpan(3, 6).span.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bias", [spans(1.0, 4.0), DynamicSpan(6)])
def test_the_penalty_is_the_mean_span_and_moves_spans_alone(bias: Ramp) -> None:
    layer = Attention(8, 2, Softmax(Causal() & Band(6), bias))
    aux = layer(torch.randn(2, 9, 8), None, Context(POS[:, 0], run=True)).aux
    assert isinstance(bias, DynamicSpan) or aux[SPAN.key] == 2.5
    aux[SPAN.key].sum().backward()
    moved = {name for name, p in layer.named_parameters() if p.grad is not None and (p.grad != 0).any()}
    assert moved == {name for name, _ in layer.named_parameters() if SPAN.moves(name)} != set()


def test_without_a_short_span_nothing_is_changed(float64: None) -> None:
    """m = 1 within z: a span as long as the row is plain attention."""
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    pair = {"q_pos": POS, "k_pos": POS, "pattern": Causal()}
    assert torch.equal(attend(q, k, v, **pair, bias=spans(9.0, 9.0)).y, attend(q, k, v, **pair).y)
