"""Restricted attention computes what softmax under the mask does, and keeps and reads only what the mask lets in."""

import copy
import inspect

import pytest
import torch
from torch import Tensor

from kinformer.core.bias import Plus
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan, DynamicSpan
from kinformer.nn.biases.masking import FunctionMasking, StepMasking
from kinformer.nn.biases.relative import Relative
from kinformer.nn.mechanisms import restricted
from kinformer.nn.mechanisms.restricted import Restricted
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
LENGTH, LONGEST = 40, 24


def learned(*z: float) -> AdaptiveSpan:
    span = AdaptiveSpan(len(z), LONGEST, ramp=3.0, step=1)
    with torch.no_grad():
        span.span.copy_(torch.tensor(z) / LONGEST)
    span.look()
    return span


def layers(span: AdaptiveSpan, memory: bool = False) -> tuple[Attention, Attention]:
    """Restricted attention, and softmax attention to all that any span could reach, of the same weights."""
    table = Relative(4, LONGEST, values=False)
    near = Restricted(Causal(), span, table)
    far = Softmax(Causal() & Band(LONGEST), Plus(table, span))
    layer = Attention(QKV(8, 2), near, memory=Hidden(5, near.lookback) if memory else None)
    other = Attention(QKV(8, 2), far, memory=Hidden(5, LONGEST) if memory else None)
    other.load_state_dict(layer.state_dict())
    return layer, other


def run(layer: Attention, x: Tensor, sizes: int) -> tuple[Tensor, list]:
    state, pieces, states = layer.start(len(x), x.shape[1]), [], []
    for at in torch.arange(x.shape[1]).split(sizes):
        out = layer(x[:, at], state, Context(at.expand(len(x), -1), run=True))
        state = out.state
        pieces.append(out.y)
        states.append(state)
    return torch.cat(pieces, 1), states


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("sizes", [pytest.param(1, marks=pytest.mark.prove), 5, 7])
def test_it_computes_what_softmax_does_and_keeps_less(memory: bool, training: bool, sizes: int) -> None:
    near, far = layers(learned(2.0, 6.5), memory)
    x = torch.randn(2, LENGTH, 8)
    (ours, near_state), (theirs, all_kept) = (run(layer.train(training), x, sizes) for layer in (near, far))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    slots, most = near_state[-1].pos.shape[1], all_kept[-1].pos.shape[1]
    # keys at x < 3 + 6.5 count: 9 before the query; of a segment of 5 four are kept, and a cache writes one more
    assert (slots, most) == ((9 + 4, LONGEST + 4) if memory and training else (9 + 1, LONGEST + 1))


@pytest.mark.parametrize("memory", [False, True])
def test_fewer_keys_are_scored(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read, scored = restricted.read, []
    monkeypatch.setattr(restricted, "read", lambda request, impl: scored.append(request.pairs) or read(request, impl))
    x = torch.randn(1, LENGTH, 8)
    for z in (2.0, 20.0):
        run(layers(learned(z, 0.0), memory)[0].train(memory), x, 5)
    half = len(scored) // 2
    assert 2 * sum(scored[:half]) < sum(scored[half:])


def test_a_memory_gives_back_what_a_span_no_longer_needs() -> None:
    """In the middle of a row: the state of lanes goes on from batch to batch while the spans are learned."""
    span = learned(20.0, 0.0)
    near, far = layers(span, memory=True)
    x, pos = torch.randn(1, LENGTH, 8), torch.arange(LENGTH)[None]
    states = [layer.train().start(1, LENGTH) for layer in (near, far)]
    for lo, z, slots in ((0, 20.0, 22), (10, 20.0, 22), (20, 4.0, 6), (30, 9.0, 11)):
        with torch.no_grad():
            span.span[0] = z / LONGEST
        span.after_step(0.5, {})
        assert near.mechanism.lookback() == slots
        at = slice(lo, lo + 10)
        outs = [layer(x[:, at], s, Context(pos[:, at])) for layer, s in zip((near, far), states, strict=True)]
        states = [out.state for out in outs]
        assert states[0].pos.shape[1] == slots + 4 and states[1].pos.shape[1] == LONGEST + 4
        if lo < 30:  # a span that grows finds what was forgotten only as rows go on
            torch.testing.assert_close(outs[0].y, outs[1].y, rtol=0, atol=1e-13)


def test_a_copy_follows_its_own_span() -> None:
    layer, _ = layers(learned(20.0, 0.0), memory=True)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.mechanism.mask.span.zero_()
    other.mechanism.mask.look()
    assert layer.memory.reads.memory == 22 and other.memory.reads.memory == 2


def test_its_pattern_follows_the_mask() -> None:
    assert Restricted(Causal(), StepMasking((2, 5))).pattern == Causal() & Band(5)
    assert Restricted(Causal() & Band(3), DynamicSpan(8)).lookback() == 3
    assert Restricted(Causal(), FunctionMasking(torch.ones_like)).pattern == Causal()
    with pytest.raises(NoState, match="reads up to inf positions ahead"):
        Attention(QKV(8, 2), Restricted(Full(), FunctionMasking(torch.ones_like))).start(1, 4)
    with pytest.raises(ValueError, match="mask is .*Relative.*; give a masking function"):
        inspect.unwrap(Restricted.__init__)(Restricted.__new__(Restricted), Causal(), Relative(4, 3))
