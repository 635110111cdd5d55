"""Adaptive and dynamic spans against their equations: weights times a ramp, renormalised."""

import inspect
import math
import re
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.bias import Plus
from kinformer.core.layer import Context
from kinformer.core.loss import penalties_of, sum_over_layers
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan, DynamicSpan, Ramp
from kinformer.nn.biases.masking import Masking
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

POS = torch.tensor([[[0, 1, 2, 3, 4, 5, 6, 7, 8]], [[-1, -1, 0, 1, 2, 3, 4, 5, 6]]])


def spans(*z: float, longest: int = 6, ramp: float = 3.0, nearest: int = 0, itself: bool = True) -> AdaptiveSpan:
    span_bias = AdaptiveSpan(len(z), longest, ramp=ramp, nearest=nearest, itself=itself)
    with torch.no_grad():
        span_bias.span.copy_(torch.tensor(z) / longest)
    return span_bias


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
    z = (0.0, 1.3, 6.0)
    bias = spans(*z, nearest=nearest, itself=itself)
    q, k, v = torch.randn(3, 2, 3, 9, 4)
    y = attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal() & Band(6), bias=bias).y
    assert torch.allclose(y, naive(q, k, v, torch.tensor(z)[:, None].expand(2, 3, 9), bias), atol=1e-12)


@pytest.mark.parametrize("itself", [True, False])
def test_dynamic_equals_a_loop_over_the_equation(itself: bool, float64: None) -> None:
    bias = DynamicSpan(6, ramp=2.5, itself=itself)
    q, k, v = torch.randn(3, 2, 3, 9, 4)
    side = 2 * torch.randn(2, 3, 9, 1)
    y = attend(q, k, v, q_pos=POS, k_pos=POS, pattern=Causal() & Band(6), bias=bias, extras={"span": side}).y
    z = torch.tensor([[[6 / (1 + math.exp(-s)) for s in row] for row in rows] for rows in side[..., 0].tolist()])
    assert torch.allclose(y, naive(q, k, v, z, bias), atol=1e-12)


def test_dynamic_spans_come_from_the_layers_input(float64: None) -> None:
    """z_t = S sigmoid(v.x_t + b), one v and b per head; its mean over heads is reported for each token."""
    bias = DynamicSpan(5, ramp=2)
    layer = Attention(QKV(8, 2), Softmax(Causal() & Band(5), bias), aggregation=Concat())
    x, pos = torch.randn(2, 9, 8), POS[:, 0]
    out = layer(x, None, Context(pos, run=True))
    assert layer.side is not None
    z = 5 * torch.sigmoid(torch.einsum("btd,hd->bht", x, layer.side.weight) + layer.side.bias[:, None])
    real = pos >= 0
    assert torch.allclose(out.aux["span"][real], z.mean(1)[real], atol=1e-12)
    queries, keys = layer.projection(x, pos, x, pos)
    heads = naive(queries.q, keys.k, keys.v, z, bias)
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
        parameters = {"bias.span": span}
        return torch.func.functional_call(_Reader(bias), parameters, (q, k, v))

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
    layer = Attention(QKV(8, 2), Softmax(Causal() & Band(6), spans(1.0, 4.5, itself=itself)))
    x, pos = torch.randn(2, 20, 8), torch.arange(20).expand(2, 20)
    whole = layer(x, None, Context(pos, run=True)).y
    state, pieces = layer.start(2, 20), []
    assert state.pos.shape[1] == 6 + 1  # those of Band(6) before a token, and the token
    for lo, hi in ((0, 1), (1, 4), (4, 5), (5, 16), (16, 20)):
        out = layer(x[:, lo:hi], state, Context(pos[:, lo:hi], run=True))
        state = out.state
        pieces.append(out.y)
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-12)
    assert state.pos.shape[1] == 6 + 1


def test_after_a_step_spans_lie_between_0_and_the_longest() -> None:
    bias = spans(-2.0, 3.0, 9.0)
    parameter = bias.span
    bias.after_step(0.5, {})
    assert bias.span is parameter and bias.span.tolist() == [0.0, 0.5, 1.0]
    assert bias.span.requires_grad and AdaptiveSpan(3, 6).span.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bias", [spans(1.0, 4.0), DynamicSpan(6)])
def test_the_penalty_is_the_mean_span_and_moves_what_it_declares(bias: Ramp) -> None:
    """On one Attention: the named parameters; where it reaches x also x and the matrix of the sides. Nothing else."""
    layer = Attention(QKV(8, 2), Softmax(Causal() & Band(6), bias))
    x = torch.randn(2, 9, 8, requires_grad=True)
    out = layer(x, None, Context(POS[:, 0], run=True))
    (penalty,) = penalties_of(layer)["span"]
    assert isinstance(bias, DynamicSpan) or float(out.aux["span"].detach()) == pytest.approx(2.5)
    sum_over_layers(out.aux, POS[:, 0] >= 0)["span"].backward()
    changed = {id(p) for p in layer.parameters() if p.grad is not None and (p.grad != 0).any()}
    side_parameters = () if layer.side is None else tuple(layer.side.parameters())
    assert penalty.reaches_x is isinstance(bias, DynamicSpan)
    assert changed == {id(p) for p in (*penalty.trains, *(side_parameters if penalty.reaches_x else ()))} != set()
    assert (x.grad is not None and bool((x.grad[POS[:, 0] >= 0] != 0).all())) is penalty.reaches_x


def test_in_a_stack_the_penalty_of_dynamic_spans_moves_the_blocks_beneath() -> None:
    blocks = [PreNorm(Attention(QKV(8, 2), Softmax(Causal(), bias))) for bias in (spans(1.0, 4.0), DynamicSpan(6))]
    stack = Stack(blocks)
    aux = stack(torch.randn(2, 9, 8), None, Context(POS[:, 0], run=True)).aux
    (static,) = torch.autograd.grad(aux["0.0.span"], [blocks[0].layers[0].mechanism.bias.span], retain_graph=True)
    assert torch.equal(static, torch.full((2,), 6 * 0.5))
    aux["1.0.span"].sum().backward()
    changed = {name for name, p in stack.named_parameters() if p.grad is not None and (p.grad != 0).any()}
    upper = {name for name in changed if name.startswith("layers.1.")}
    assert upper == {f"layers.1.{name}" for name in ("layers.0.side.weight", "layers.0.side.bias")} | {
        f"layers.1.norms.0.{name}" for name, _ in blocks[1].norms[0].named_parameters()
    }
    assert {"layers.0.layers.0.projection.qkv.weight", "layers.0.layers.0.mechanism.bias.span"} <= changed


def test_two_dynamic_spans_are_told_apart_by_their_place(float64: None) -> None:
    """Each has columns of its own in the layer's matrix; together they read what one after the other leaves."""
    near, far = DynamicSpan(3, ramp=2), DynamicSpan(6, ramp=2)
    layer = Attention(QKV(8, 2), Softmax(Causal(), Plus(near, far)), aggregation=Concat())
    x, pos = torch.randn(2, 9, 8), POS[:, 0]
    out = layer(x, None, Context(pos, run=True))
    assert layer.side is not None and layer.side.out_features == 4
    z = torch.sigmoid(layer.side(x)).unflatten(-1, (2, 2)).permute(2, 0, 3, 1)  # [spans B H T]
    assert set(out.aux) == {"0.span", "1.span"}
    for n, longest in enumerate((3, 6)):
        real, want = pos >= 0, longest * z[n].mean(1)
        torch.testing.assert_close(out.aux[f"{n}.span"][real], want[real], rtol=0, atol=1e-12)
    queries, keys = layer.projection(x, pos, x, pos)
    mechanisms = [Softmax(Causal(), Fixed(longest, longest * z[n], 2.0)) for n, longest in enumerate((3, 6))]
    q = {"q_pos": POS, "k_pos": POS, "pattern": Causal()}
    want = attend(queries.q, keys.k, keys.v, **q, bias=Plus(*(m.bias for m in mechanisms))).y
    torch.testing.assert_close(out.y, want.transpose(1, 2).flatten(2), rtol=0, atol=1e-12)


class Fixed(Ramp):
    """Spans that are given."""

    def __init__(self, longest: int, z: Tensor, ramp: float):
        super().__init__(longest, ramp=ramp)
        self.z = z

    def spans(self, sides: Mapping[str, Tensor]) -> Tensor:
        return self.z


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_spans_are_float32_in_a_half_precision_layer(dtype: torch.dtype) -> None:
    """In bfloat16 a span between 256 and 512 would move in steps of 2: whole keys appear and disappear."""
    dynamic, side = DynamicSpan(400), torch.randn(2, 3, 9, 1).to(dtype)
    actual = dynamic.spans({"span": side})
    assert actual.dtype == torch.float32
    assert torch.equal(actual, 400 * torch.sigmoid(side.float()[..., 0]))
    assert torch.equal(dynamic.aux({"span": side})["span"], actual.mean(1))
    static = AdaptiveSpan(3, 400, start=257).to(dtype)
    assert static.spans({}).dtype == static.aux({})["span"].dtype == torch.float32


def unchecked(kind: type[Ramp], *args: object, **keywords: object) -> None:
    """A mask made as outside of the tests, where nothing checks annotations."""
    inspect.unwrap(Masking.__init__)(kind.__new__(kind), *args, **keywords)


def test_what_is_no_option_is_refused() -> None:
    for make, words in (
        (lambda: unchecked(AdaptiveSpan, nearest=2), "nearest=2 is not known; choose 0 or 1"),
        (lambda: unchecked(DynamicSpan, nearest="0"), "nearest='0' is not known; choose 0 or 1"),
        (lambda: AdaptiveSpan(0, 8), "heads=0: give a whole number of at least 1"),
        (lambda: DynamicSpan(0), "longest=0: give a whole number of at least 1"),
        (lambda: AdaptiveSpan(2, 8, ramp=0.0), "ramp=0.0: give a number from 1 up"),
        (lambda: AdaptiveSpan(2, 8, start=9.0), "start=9.0: give a number from 0 to 8"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
            make()


def test_spans_of_other_heads_are_an_error() -> None:
    with pytest.raises(ValueError, match="got spans of 3 heads in a layer of 2 heads"):
        attend(*torch.randn(3, 2, 2, 9, 4), q_pos=POS, k_pos=POS, pattern=Causal(), bias=spans(1.0, 2.0, 3.0))


def test_without_a_short_span_nothing_is_changed(float64: None) -> None:
    """m = 1 within z: a span as long as the row is plain attention."""
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    pair = {"q_pos": POS, "k_pos": POS, "pattern": Causal()}
    whole, spanned = (attend(q, k, v, **pair, bias=bias).y for bias in (None, spans(9.0, 9.0, longest=9)))
    torch.testing.assert_close(spanned, whole, rtol=0, atol=1e-14)  # by executors that add in another order


def test_a_step_moves_a_span_by_a_part_of_the_longest(float64: None) -> None:
    """A23: a span in positions moved by the learning rate a step, whatever there was to gain: 1024 to 1020 in 2,000."""
    bias = AdaptiveSpan(2, 1024, start=1000.0)
    optimiser = torch.optim.Adam([bias.span], lr=2e-3)
    for _ in range(100):
        optimiser.zero_grad()
        bias.aux({})["span"].backward()
        optimiser.step()
        bias.after_step(0.5, {})
    assert bias.spans({}).flatten().tolist() == pytest.approx([1000 - 100 * 2e-3 * 1024] * 2, rel=1e-4)


@pytest.mark.parametrize(
    ("keywords", "z", "reach"),
    [({}, 5.0, 37), ({"nearest": 1}, 5.0, 38), ({}, 4.2, 37), ({"step": 16}, 5.0, 48), ({}, 90.0, 100), ({}, 0.0, 32)],
)
def test_its_reach_is_the_furthest_key_that_counts(keywords: dict, z: float, reach: int, float64: None) -> None:
    bias = AdaptiveSpan(2, 100, **{"step": 1, "ramp": 33.0, **keywords})
    with torch.no_grad():
        bias.span.copy_(torch.tensor([0.0, z / 100]))
    bias.look()
    assert bias.reach == reach
    x = torch.arange(130.0) - bias.nearest
    m = ((33 + torch.tensor([[0.0], [z]]) - x) / 33).clamp(0, 1)
    last = int((m > 0).any(0).nonzero().max())
    assert reach == min(100, last) or (keywords.get("step") == 16 and last <= reach < last + 16)


def test_weights_that_are_loaded_bring_their_reach() -> None:
    short, other = AdaptiveSpan(2, 100, step=1, start=3.0), AdaptiveSpan(2, 100, step=1, start=60.0)
    other.load_state_dict(short.state_dict())
    assert other.reach == short.reach == 34


@pytest.mark.parametrize("nearest", [0, 1])
def test_no_key_beyond_the_longest_span_is_read_whatever_the_ramp(nearest: int, float64: None) -> None:
    """Where z + ramp was above `longest`, Softmax used to read on: what `Restricted` does not keep."""
    bias = spans(4.0, 1.0, 2.0, longest=4, nearest=nearest)
    bias.look()
    q, k, v = torch.randn(3, 2, 3, 9, 4)
    free, bounded = (
        attend(q, k, v, q_pos=POS, k_pos=POS, pattern=pattern, bias=bias).y
        for pattern in (Causal(), Causal() & Band(int(bias.reach)))
    )
    assert torch.allclose(free, bounded, atol=1e-12)
    z = torch.tensor([4.0, 1.0, 2.0])[:, None].expand(2, 3, 9)
    assert torch.allclose(free, naive(q, k, v, z, bias), atol=1e-12)
