"""Universal: a stack of one block, and the paper's equations for it."""

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context, Layer, Out, PerToken, State
from kinformer.core.patterns.causal import Causal
from kinformer.core.position import Position
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.positioned_block import PositionedBlock
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.depth.universal import Universal
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.timing import Timing
from kinformer.nn.projections.qkv import QKV

CTX = Context(torch.arange(6).expand(2, 6), run=True)


def block() -> PostNorm:
    return PostNorm(Attention(QKV(8, 2), Softmax(Causal())), MLP(8, activation="relu"))


def test_equals_a_stack_that_shares_its_weights(float64: None) -> None:
    """Row 130: outputs, states, and the gradients of weights and input; and each goes on from the other's state."""
    shared, x = block(), torch.randn(2, 6, 8, requires_grad=True)
    ours, theirs = Universal(shared, 3), Stack([shared] * 3)
    y, want = (layer(x, None, CTX).y for layer in (ours, theirs))
    assert torch.equal(y, want)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in shared.parameters())
    leaves_of = (x, *shared.parameters())
    for mine, reference in zip(
        *(torch.autograd.grad(each.square().sum(), leaves_of) for each in (y, want)), strict=True
    ):
        assert torch.equal(mine, reference)
    actual, want = (layer(x, layer.start(2, 6, dtype=x.dtype), CTX) for layer in (ours, theirs))
    assert torch.equal(actual.y, want.y)
    for (_, mine), (_, reference) in zip(leaves(actual.state), leaves(want.state), strict=True):
        assert torch.equal(mine, reference)
    for first, then in ((ours, theirs), (theirs, ours)):
        state = first(x[:, :4], first.start(2, 6, dtype=x.dtype), CTX.columns(0, 4)).state
        assert torch.allclose(then(x[:, 4:], state, CTX.columns(4, 6)).y, y[:, 4:], atol=1e-14)


def test_with_a_timing_it_equals_a_stack_that_adds_it(float64: None) -> None:
    """Blocks of one set of weights, each of which is told its own step."""

    class Step(Position):
        def __init__(self, number: int):
            super().__init__()
            self.number = number

        def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
            return timing(pos, self.number)

    shared, timing, x = block(), Timing(8), torch.randn(2, 6, 8, requires_grad=True)
    layers = Universal(shared, 3, timing), Stack([PositionedBlock(shared, Step(n)) for n in range(3)])
    y, want = (layer(x, None, CTX).y for layer in layers)
    assert torch.equal(y, want)
    leaves_of = (x, *shared.parameters())
    for mine, theirs in zip(*(torch.autograd.grad(each.square().sum(), leaves_of) for each in (y, want)), strict=True):
        assert torch.equal(mine, theirs)


def test_equals_the_equations(float64: None) -> None:
    """A = LN((H + P) + MHSA(H + P)), H = LN(A + Transition(A)), with the timing in the first residual."""
    shared, timing, x = block(), Timing(8), torch.randn(2, 6, 8)
    h = x
    for t in range(3):
        placed = h + timing(CTX.pos, t)
        a = shared.norms[0](placed + shared.layers[0](placed, None, CTX).y)
        h = shared.norms[1](a + shared.layers[1](a, None, CTX).y)
    assert torch.allclose(Universal(shared, 3, timing)(x, None, CTX).y, h, atol=1e-13)


class Reporter(Layer):
    """Adds 1; reports its input, a price of its weights, a count, and sends its input up."""

    def __init__(self) -> None:
        super().__init__()
        self.d, self.seen = 8, []

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        self.seen.append(dict(ctx.below))
        aux = {"told": x.mean(-1), "price": x.new_tensor(2.0)}
        return Out(x + 1, state, aux, {"sent": PerToken(x)}, {"counted": torch.ones(())})


def test_reports_of_steps_are_added_up_and_prices_of_weights_are_not() -> None:
    shared, x = Reporter(), torch.randn(2, 6, 8)
    out = Universal(shared, 3)(x, None, CTX)
    assert torch.allclose(out.aux["told"], 3 * x.mean(-1) + 3, atol=1e-6)
    assert out.aux["price"] == 2 and out.stats["counted"] == 3
    assert [below.keys() for below in shared.seen] == [set(), {"sent"}, {"sent"}]
    assert torch.equal(shared.seen[2]["sent"].value, x + 1) and torch.equal(out.up["sent"].value, x + 1 + 1)


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=0: give a whole number of at least 1"):
        Universal(block(), 0)


def test_only_to_remember_gives_the_same_state(float64: None) -> None:
    layer, x = Universal(block(), 3, Timing(8)), torch.randn(2, 6, 8)
    want = layer(x, layer.start(2, 6), CTX).state
    actual = layer(x, layer.start(2, 6), CTX.replace(remember=True)).state
    for (_, ours), (_, theirs) in zip(leaves(actual), leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_inner_states_are_handed_back(float64: None) -> None:
    layer, x = Universal(block(), 3, Timing(8)), torch.randn(2, 6, 8)
    taps = layer(x, None, CTX.replace(taps=("0", "1.input", "2"))).taps
    assert set(taps) == {"0", "1.input", "2"}
    assert torch.equal(taps["1.input"], taps["0"] + layer.timing(CTX.pos, 1))
    assert torch.equal(taps["2"], layer(x, None, CTX).y)
