"""PreNorm and PostNorm: where the norm stands, what sublayers see, and under which names their reports go up."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.layer import Context, Layer, Out, PerToken, State
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.rms import RMSNorm
from kinformer.nn.projections.qkv import QKV

CTX = Context(torch.arange(5).expand(2, 5), run=True)


class Teller(Layer):
    """Reports and sends up what it was given, keeps a count as its state, and remembers what it saw below."""

    def __init__(self, d: int):
        super().__init__()
        self.d, self.seen = d, None

    def start(self, batch: int, length: int, *, dtype=None, device=None) -> State:
        return torch.zeros(batch, 1)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        self.seen = ctx
        count = None if state is None else state + x.shape[1]
        return Out(2 * x, count, {"told": x.mean(-1)}, {"sent": PerToken(x)}, {"counted": x.detach().sum()})


@pytest.mark.parametrize("kind", [PreNorm, PostNorm])
def test_equals_its_equation(kind: type[PreNorm] | type[PostNorm], float64: None) -> None:
    attention, mlp = Attention(QKV(8, 2), Softmax(Causal())), MLP(8)
    block, x = kind(attention, mlp, norm=RMSNorm), torch.randn(2, 5, 8)
    for norm in block.norms:
        torch.nn.init.normal_(norm.weight)
    expected = x
    for layer, norm in zip((attention, mlp), block.norms, strict=True):
        if kind is PreNorm:
            expected = expected + layer(norm(expected), None, CTX).y
        else:
            expected = norm(expected + layer(expected, None, CTX).y)
    assert torch.equal(block(x, None, CTX).y, expected)


@pytest.mark.parametrize("kind", [PreNorm, PostNorm])
def test_dropout_falls_on_what_a_sublayer_adds(kind: type[PreNorm] | type[PostNorm]) -> None:
    block, x = kind(MLP(8), dropout=1.0), torch.randn(2, 5, 8)
    skip_input = x if kind is PreNorm else block.norms[0](x)
    assert torch.equal(block(x, None, CTX).y, skip_input)
    assert not torch.allclose(block.eval()(x, None, CTX).y, skip_input)


def test_states_and_reports_carry_the_place_of_their_sublayer() -> None:
    first, second = Teller(8), Teller(8)
    block, x = PreNorm(first, MLP(8), second), torch.randn(2, 5, 8)
    out = block(x, block.start(2, 5), CTX)
    assert [set(m) for m in (out.aux, out.up, out.stats)] == [
        {f"{n}.{name}" for n in (0, 2)} for name in ("told", "sent", "counted")
    ]
    assert torch.equal(out.up["0.sent"].value, block.norms[0](x))
    assert out.state[0].tolist() == [[5.0], [5.0]] and out.state[1] == ()
    assert block(x, None, CTX).state is None


def test_a_sublayer_sees_what_is_meant_for_all_and_for_its_place() -> None:
    first, second = Teller(8), Teller(8)
    task, first_place, second_place = map(PerToken, torch.randn(3, 2, 5, 8))
    source = torch.randn(2, 3, 8)
    below = {"task": task, "0.sent": first_place, "1.sent": second_place}
    at = torch.arange(3).expand(2, 3)
    ctx = Context(CTX.pos, True, only=Causal(), also=Causal(), source=source, source_pos=at, below=below, full=True)
    PreNorm(first, second)(torch.randn(2, 5, 8), None, ctx)
    for teller, own in ((first, first_place), (second, second_place)):
        assert teller.seen is not None and set(teller.seen.below) == {"task", "sent"}
        assert teller.seen.below["task"] is task and teller.seen.below["sent"] is own
        for name in ("pos", "run", "only", "also", "source", "source_pos", "memo"):
            assert getattr(teller.seen, name) is getattr(ctx, name)
    assert set(below) == {"task", "0.sent", "1.sent"}


@pytest.mark.parametrize("kind", [PreNorm, PostNorm])
@pytest.mark.parametrize("dropout", [-0.1, 1.5, "half"])
def test_refuses_a_dropout_that_is_no_share(kind: type[PreNorm] | type[PostNorm], dropout: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        kind(MLP(8), dropout=dropout)


def test_refuses_sublayers_of_different_widths() -> None:
    with pytest.raises(ValueError, match=r"widths \[8, 12\]"):
        PostNorm(MLP(8), MLP(12))


class Unasked(Layer):
    """A layer without a state, which a block that only remembers has no reason to compute."""

    def __init__(self, d: int):
        super().__init__()
        self.d = d

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        raise AssertionError("computed although nothing after it has a state")


@pytest.mark.parametrize("kind", [PreNorm, PostNorm])
def test_remembering_leaves_the_state_that_reading_does(kind: type[PreNorm] | type[PostNorm], float64: None) -> None:
    first, second, x = (
        Attention(QKV(8, 2), Softmax(Causal())),
        Attention(QKV(8, 2), Softmax(Causal())),
        torch.randn(2, 5, 8),
    )
    block, silent = kind(first, MLP(8), second, MLP(8)), Unasked(8)
    read = block(x, block.start(2, 5, dtype=x.dtype), CTX).state
    block.layers[3] = silent
    state = block(x, block.start(2, 5, dtype=x.dtype), CTX.replace(remember=True)).state
    for n in (0, 2):
        for (_, ours), (_, theirs) in zip(leaves(state[n]), leaves(read[n]), strict=True):
            # to rounding: products of other shapes round otherwise on some machines
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    assert state[1] == state[3] == ()
