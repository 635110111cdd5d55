"""Stack: blocks in order, with what one sends up in the next one's view."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from kinformer.core.layer import Context, Layer, Out, PerToken, State, Want
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import unhooked

CTX = Context(torch.arange(6).expand(2, 6), run=True)


class Sender(Layer):
    """Adds 1 and sends its input up under a name, remembering what it saw."""

    def __init__(self, d: int, name: str):
        super().__init__()
        self.d, self.name = d, name
        self.seen: dict[str, PerToken] = {}

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        self.seen = dict(ctx.below)
        return Out(x + 1, state, {"told": x.mean(-1)}, {self.name: PerToken(x)}, {"counted": x.detach().sum()})


def blocks() -> list[PreNorm]:
    return [PreNorm(Attention(QKV(8, 2), Softmax(Causal())), MLP(8)) for _ in range(3)]


def test_is_its_blocks_one_after_the_other_then_the_norm(float64: None) -> None:
    layers, x = blocks(), torch.randn(2, 6, 8)
    expected = x
    for layer in layers:
        expected = layer(expected, None, CTX).y
    norm = LayerNorm(8)
    assert torch.equal(Stack(layers)(x, None, CTX).y, expected)
    assert torch.equal(Stack(layers, norm)(x, None, CTX).y, norm(expected))


def test_each_block_has_a_state_of_its_own(float64: None) -> None:
    stack, x = Stack(blocks(), LayerNorm(8)), torch.randn(2, 6, 8)
    whole = stack(x, None, CTX)
    state, pieces = stack.start(2, 6, dtype=x.dtype), []
    assert len(state) == 3 and whole.state is None
    for lo, hi in ((0, 1), (1, 5), (5, 6)):
        out = stack(x[:, lo:hi], state, Context(CTX.pos[:, lo:hi], run=True))
        state = out.state
        pieces.append(out.y)
    assert torch.allclose(torch.cat(pieces, 1), whole.y, atol=1e-13)


def test_what_is_sent_up_is_seen_by_all_above_the_newest_first() -> None:
    layers = [Sender(8, "a"), Sender(8, "b"), Sender(8, "a"), Sender(8, "c")]
    x, signal = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    ctx = Context(CTX.pos, below={"given": PerToken(signal), "a": PerToken(signal)})
    out = Stack(layers)(x, None, ctx)
    expected = [{"given": signal, "a": signal}, {"given": signal, "a": x}, {"given": signal, "a": x, "b": x + 1}]
    expected.append({"given": signal, "a": x + 2, "b": x + 1})
    for layer, want in zip(layers, expected, strict=True):
        assert layer.seen.keys() == want.keys()
        assert all(torch.allclose(layer.seen[name].value, want[name]) for name in want)
    assert set(out.up) == {"a", "b", "c"} and set(ctx.below) == {"given", "a"}


def test_reports_are_named_by_block() -> None:
    x = torch.randn(2, 6, 8)
    out = Stack([Sender(8, "a"), Sender(8, "a")])(x, None, CTX)
    assert torch.allclose(out.aux["1.told"], out.aux["0.told"] + 1, atol=1e-6) and len(out.aux) == 2
    assert set(out.stats) == {"0.counted", "1.counted"}


def test_nothing_is_no_stack() -> None:
    with pytest.raises(ValueError, match=r"^layers=\[\] is empty\. Pass at least one layer"):
        Stack([])


def test_widths_must_agree() -> None:
    with pytest.raises(ValueError, match=r"the same d: got widths \[8, 9\]"):
        Stack([Sender(8, "a"), Sender(9, "a")])


def wrapped() -> bool:
    plain, x = blocks(), torch.randn(2, 6, 8)
    wrappers = [torch.compile(plain[0], backend="eager"), checkpoint_wrapper(plain[1]), plain[2]]
    return torch.allclose(Stack(wrappers)(x).y, Stack(plain)(x).y, atol=1e-5)


def test_wrappers_of_layers_are_layers() -> None:
    assert unhooked(f"{__name__}:{wrapped.__name__}")


def test_what_is_sent_within_is_not_wanted_from_outside() -> None:
    layers = [Sender(8, "a"), Sender(8, "b"), Sender(8, "c")]
    for layer in layers:
        layer.sends = frozenset({layer.name})
    layers[0].wants, layers[2].wants = (Want("task"),), (Want("a"), Want("b", optional=True))
    stack = Stack(layers)
    assert stack.wants == (Want("task"),) and stack.sends == {"a", "b", "c"}
    layers[1].wants = (Want("c", optional=True),)
    assert Stack(layers).wants == (Want("task"), Want("c")), (
        "what nobody beneath sends may not be missing above the lowest"
    )


def test_only_to_remember_gives_the_same_state(float64: None) -> None:
    stack, x = Stack(blocks(), LayerNorm(8)), torch.randn(2, 6, 8)
    calls: list[int] = []
    stack.layers[2].layers[1].register_forward_hook(lambda *_: calls.append(1))
    want = stack(x, stack.start(2, 6), CTX).state
    calls.clear()
    actual = stack(x, stack.start(2, 6), CTX.replace(remember=True)).state
    assert not calls
    for (_, ours), (_, theirs) in zip(leaves(actual), leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
