"""Reversible: the gradients of the same stack, everything included, and nothing kept for them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.state import leaves
from kinformer.depth.reversible import Coupled, Reversible
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.explicit import Explicit
from kinformer.mechanisms.softmax import Softmax
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full

POS = torch.arange(6).expand(2, 6)


class Reporting(Layer):
    """A linear map that reads what is below, and reports a value per token, a penalty and a count."""

    def __init__(self, d: int):
        super().__init__()
        self.d, self.linear = d, nn.Linear(d, d)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        y = self.linear(x + ctx.below["task"]).tanh()
        aux = {"size": y.square().sum(-1), "weight": self.linear.weight.square().sum()}
        return Out(y, state, aux, {}, {"tokens": torch.tensor(y.numel())})


def stack(kind: type[Stack], dropout: float = 0.0) -> Any:
    """Blocks of attention, attention to a source and a layer that reports; one block is there twice."""

    def block() -> Coupled:
        itself = Attention(4, 2, Softmax(Causal(), dropout=dropout))
        across = Attention(4, 2, Softmax(Full()), cross=True)
        return Coupled(itself, across, Reporting(4), dropout=dropout)

    shared = block()
    return kind([shared, block(), shared], LayerNorm(8))


def pair(dropout: float = 0.0) -> tuple[Any, Any]:
    ours = stack(Reversible, dropout)
    theirs = stack(Stack, dropout)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gradients(module: Any, x: Tensor, chunks: list[int]) -> dict[str, Tensor]:
    """Values and gradients of everything there is, over chunks whose state is not cut from the graph."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    source, task = torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    state, total, lo = module.start(2, 6) if len(chunks) > 1 else None, torch.zeros(()), 0
    found: dict[str, Tensor] = {}
    for size in chunks:
        below = {"task": task * 2}
        given: dict[str, Any] = {"source": source * 3, "source_pos": POS[:, :3]} if lo == 0 or state is None else {}
        out = module(x[:, lo : lo + size], state, Context(POS[:, lo : lo + size], True, below=below, **given))
        state, lo = out.state, lo + size
        total = total + out.y.sin().sum() + sum(((n + 1) * v).sum() for n, v in enumerate(out.aux.values()))
        found |= {f"{lo}.{name}": value for name, value in {**out.aux, **out.stats}.items()}
    if state is not None:
        total = total + sum(leaf.cos().sum() for _, leaf in leaves(state) if leaf.requires_grad)
    inputs = {"x": x, "source": source, "task": task, **dict(module.named_parameters())}
    grads = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    return found | {"total": total} | {name: g for name, g in zip(inputs, grads, strict=True) if g is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("chunks", [[6], [1, 3, 2]])
def test_gradients_are_those_of_the_stack(float64: None, dropout: float, chunks: list[int]) -> None:
    ours, theirs = pair(dropout)
    x = torch.randn(2, 6, 8)
    mine, wanted = gradients(ours, x, chunks), gradients(theirs, x, chunks)
    assert mine.keys() == wanted.keys() and len(mine) > 40
    for name, value in wanted.items():
        assert torch.allclose(mine[name].double(), value.double(), atol=1e-11, rtol=1e-11), name


def test_dropout_goes_on_as_if_nothing_had_been_replayed() -> None:
    block = Coupled(Attention(4, 2, Softmax(Causal())), MLP(4), dropout=0.5)
    after = []
    for kind in (Stack, Reversible):
        torch.manual_seed(1)
        kind([block])(torch.randn(2, 6, 8), None, Context(POS, True)).y.sum().backward()
        after.append(torch.rand(3))
    assert torch.equal(*after)


def kept(module: nn.Module, forward: Callable[[], object]) -> int:
    """Numbers that autograd keeps of a forward, weights not counted."""
    weights, sizes = {w.data_ptr() for w in module.parameters()}, []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(sizes)


def test_nothing_kept_grows_with_depth() -> None:
    def of(kind: type[Stack], depth: int) -> int:
        module = kind([Coupled(Attention(4, 2, Softmax(Causal())), MLP(4)) for _ in range(depth)])
        x = torch.randn(2, 6, 8, requires_grad=True)
        return kept(module, lambda: module(x, None, Context(POS, True)))

    assert of(Reversible, 1) == of(Reversible, 8) == 2 * 6 * 8
    assert of(Stack, 8) > 7 * of(Stack, 1) > 0


def test_in_float32_inputs_come_back_to_rounding() -> None:
    ours = Reversible([Coupled(Attention(16, 4, Softmax(Causal())), MLP(16)) for _ in range(12)])
    exact = copy.deepcopy(ours).double()
    x = torch.randn(2, 6, 32)
    grads: list[Any] = []
    for module, given in ((ours, x), (exact, x.double())):
        given.requires_grad_()
        module(given, None, Context(POS, True)).y.square().sum().backward()
        grads.append(given.grad)
    assert (grads[0].double() - grads[1]).norm() < 1e-5 * grads[1].norm()


def test_a_weight_changed_before_the_backward_is_an_error() -> None:
    module = Reversible([Coupled(MLP(4), MLP(4))])
    y = module(torch.randn(2, 6, 8), None, Context(POS)).y
    with torch.no_grad():
        module.layers[0].layers[0].up.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="a MLP cannot be undone; give Reversible Coupled blocks, or use Stack"):
        Reversible([MLP(4)])
    sending = Reversible([Coupled(Attention(4, 2, Explicit(Causal(), up=True)), MLP(4))])
    with pytest.raises(ValueError, match=r"sublayer 0.0 sends up \['scores', 'scores_pos'\].*use Stack"):
        sending(torch.randn(2, 6, 8), None, Context(POS, True))
