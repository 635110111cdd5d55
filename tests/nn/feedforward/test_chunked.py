"""Chunked feed-forward: the same values and gradients, fewer hidden values at a time."""

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.choice import choice
from kinformer.core.layer import Context, Layer, Out, PerPair, PerToken, State, Want
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.chunked import Chunked
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.feedforward.separable_conv import SeparableConv
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import unhooked

CTX = Context(torch.arange(11).expand(2, 11), True)


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_it_is_the_layer(float64: None, size: int) -> None:
    mlp, x = MLP(8), torch.randn(2, 11, 8, requires_grad=True)
    outs = [layer(x, None, CTX).y for layer in (mlp, Chunked(mlp, size))]
    assert torch.allclose(*outs, atol=1e-14)
    inputs = [x, *mlp.parameters()]
    for first, other in zip(*(torch.autograd.grad(y.sin().sum(), inputs) for y in outs), strict=True):
        assert torch.allclose(first, other, atol=1e-13)


def test_no_hidden_value_is_kept_for_the_backward() -> None:
    def saved_storages(layer: torch.nn.Module) -> set[int]:
        widths: set[int] = set()

        def pack(tensor: Tensor) -> Tensor:
            if tensor.shape[-1] == 32 and tensor.dim() == 3:
                widths.add(tensor.shape[1])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(torch.randn(2, 11, 8, requires_grad=True), None, CTX)
        return widths

    mlp = MLP(8)
    assert saved_storages(mlp) == {11} and saved_storages(Chunked(mlp, 4)) == set()


def test_dropout_is_the_same_in_the_backward(float64: None) -> None:
    layer = Chunked(MLP(8, dropout=0.5, activation="relu"), 3).train()
    x = torch.randn(2, 11, 8, requires_grad=True)
    torch.manual_seed(2)
    first = layer(x, None, CTX).y
    (grad,) = torch.autograd.grad(first.sum(), x)
    step = 1e-7 * torch.randn_like(x)
    torch.manual_seed(2)
    assert torch.allclose(layer(x + step, None, CTX).y.sum() - first.sum(), (grad * step).sum(), rtol=1e-4)


def test_what_reads_tokens_together_is_refused() -> None:
    with pytest.raises(ValueError, match="Attention has a state.*give an MLP"):
        Chunked(Attention(QKV(8, 2), Softmax(Causal())), 4)
    for whole in (SeparableConv(16, causal=False), Attention(QKV(8, 2), Softmax(Full()))):
        with pytest.raises(ValueError, match="reads a whole row at once and cannot be chunked; give an MLP"):
            Chunked(whole, 4)
    with pytest.raises(ValueError, match="size=0"):
        Chunked(MLP(8), 0)
    with pytest.raises(ValueError, match="Reader passes 'seen' of whole rows to later blocks"):
        Chunked(Reader(sends=frozenset({"seen"})), 2)


class Reader(Layer):
    """Gives what it finds below and among the labels for each token, and reports and tells of it."""

    d = 8
    wants = (Want("level"), Want("pairs"))

    def __init__(self, sends: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.sends = sends

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        level, pairs = ctx.below["level"].value, ctx.below["pairs"].scores
        y = x * level[..., None] + pairs.sum((1, 3))[..., None] + ctx.labels["segment"][..., None]
        return Out(y, state, {"level": level * 2, "fixed": x.new_ones(())}, {}, {"count": level.sum()}, {"seen": y})


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_what_came_from_below_and_the_labels_are_cut_with_the_tokens(float64: None, size: int) -> None:
    by_head = CTX.pos[:, None]
    below = {"level": PerToken(torch.randn(2, 11)), "pairs": PerPair(torch.randn(2, 3, 11, 11), by_head, by_head)}
    ctx = Context(CTX.pos, below=below, labels={"segment": torch.randint(0, 5, (2, 11))}, run=True)
    x = torch.randn(2, 11, 8)
    chunked = Chunked(Reader(), size)
    whole, chunks_out = Reader()(x, None, ctx), chunked(x, None, ctx)
    assert chunked.wants == Reader.wants
    assert torch.allclose(chunks_out.y, whole.y) and torch.allclose(chunks_out.taps["seen"], whole.taps["seen"])
    assert torch.allclose(chunks_out.stats["count"], whole.stats["count"])
    assert chunks_out.aux["fixed"].item() == 1 and torch.equal(chunks_out.aux["level"], whole.aux["level"])


def test_a_row_without_tokens() -> None:
    ctx = Context(torch.zeros(2, 0, dtype=torch.long))
    assert Chunked(MLP(8), 4)(torch.zeros(2, 0, 8), None, ctx).y.shape == (2, 0, 8)


class Chooser(Layer):
    """Adds one of two vectors by a hard choice that is another one each time it is asked for."""

    d = 8

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.two = nn.Parameter(torch.tensor([[1.0], [100.0]]))

    def choose(self) -> Tensor:
        self.asked += 1
        return torch.tensor(self.asked % 2)

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x * self.two[choice(self.choose)], state)


def test_a_hard_choice_is_made_once_and_read_back_in_the_backward() -> None:
    layer, x = Chooser(), torch.ones(2, 11, 8, requires_grad=True)
    out = Chunked(layer, 4)(x, None, CTX).y
    for _ in range(2):  # also where a graph is kept, and its layers are computed again once more
        (grad,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        assert torch.equal(grad, out.detach())
    assert layer.asked == 3


def compiled() -> list[bool]:
    x, compiled_grads = torch.randn(2, 11, 8), []
    for chunked in (Chunked(MLP(8), 4),):
        whole = torch.compile(chunked, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            compiled_grads.append(torch.allclose(whole(x, None, CTX).y, chunked(x, None, CTX).y))
        x.requires_grad_()
        grads = [torch.autograd.grad(module(x, None, CTX).y.sin().sum(), x)[0] for module in (whole, chunked)]
        compiled_grads.append(torch.allclose(*grads, atol=1e-6))
    return compiled_grads


def test_one_graph() -> None:
    assert unhooked(f"{__name__}:{compiled.__name__}") == [True, True]
