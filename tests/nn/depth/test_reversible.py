"""Reversible: the gradients of the same stack, everything included, and nothing kept for them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.choice import choice, run_checkpointed
from kinformer.core.layer import Context, Layer, Out, PerToken, State
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.depth.reversible import Coupled, Reversible
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV

POS = torch.arange(6).expand(2, 6)


class Reporting(Layer):
    """A linear map that reads what is below, and reports a value per token, a penalty and a count."""

    def __init__(self, d: int):
        super().__init__()
        self.d, self.linear = d, nn.Linear(d, d)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        y = self.linear(x + ctx.below["task"].value).tanh()
        aux = {"size": y.square().sum(-1), "weight": self.linear.weight.square().sum()}
        return Out(y, state, aux, {}, {"tokens": torch.tensor(y.numel())})


def stack(kind: type[Stack], dropout: float = 0.0) -> Any:
    """Blocks of attention, attention to a source and a layer that reports; one block is there twice."""

    def block() -> Coupled:
        itself = Attention(QKV(4, 2), Softmax(Causal(), dropout=dropout))
        across = Attention(QKV(4, 2), Softmax(Full()), cross=True)
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
    results: dict[str, Tensor] = {}
    for size in chunks:
        below = {"task": PerToken((task * 2).expand(2, size, 4))}
        arguments: dict[str, Any] = {"source": source * 3, "source_pos": POS[:, :3]} if lo == 0 or state is None else {}
        out = module(x[:, lo : lo + size], state, Context(POS[:, lo : lo + size], True, below=below, **arguments))
        state, lo = out.state, lo + size
        total = total + out.y.sin().sum() + sum(((n + 1) * v).sum() for n, v in enumerate(out.aux.values()))
        results |= {f"{lo}.{name}": value for name, value in {**out.aux, **out.stats}.items()}
    if state is not None:
        total = total + sum(leaf.cos().sum() for _, leaf in leaves(state) if leaf.requires_grad)
    inputs = {"x": x, "source": source, "task": task, **dict(module.named_parameters())}
    grads = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    return results | {"total": total} | {name: g for name, g in zip(inputs, grads, strict=True) if g is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("chunks", [[6], [1, 3, 2]])
def test_gradients_are_those_of_the_stack(float64: None, dropout: float, chunks: list[int]) -> None:
    ours, theirs = pair(dropout)
    x = torch.randn(2, 6, 8)
    mine, expected = gradients(ours, x, chunks), gradients(theirs, x, chunks)
    assert mine.keys() == expected.keys() and len(mine) > 40
    for name, value in expected.items():
        assert torch.allclose(mine[name].double(), value.double(), atol=1e-11, rtol=1e-11), name


def test_dropout_goes_on_as_if_nothing_had_been_replayed() -> None:
    block = Coupled(Attention(QKV(4, 2), Softmax(Causal())), MLP(4), dropout=0.5)
    after = []
    for kind in (Stack, Reversible):
        torch.manual_seed(1)
        kind([block])(torch.randn(2, 6, 8), None, Context(POS, True)).y.sum().backward()
        after.append(torch.rand(3))
    assert torch.equal(*after)


def saved_numbers(module: nn.Module, forward: Callable[[], object]) -> int:
    """Numbers that autograd keeps of a forward, weights not counted."""
    weights, sizes = {w.data_ptr() for w in module.parameters()}, []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(sizes)


class Fickle(Layer):
    """Doubles what a hash likes; the hash likes something else each time that it is asked."""

    def __init__(self, d: int):
        super().__init__()
        self.d, self.linear, self.calls = d, nn.Linear(d, d), 0

    def _hash(self) -> Tensor:
        self.calls += 1
        return torch.arange(6) % (self.calls + 1) == 0

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        liked = choice(self._hash)
        return Out(torch.where(liked[:, None], 2.0, 1.0) * self.linear(x).tanh(), state)


@pytest.mark.parametrize("recompute", [False, True])
def test_hard_choices_are_those_of_the_forward(recompute: bool, float64: None) -> None:
    """Also where the whole is computed again by somebody else."""
    module, x = Reversible([Coupled(Fickle(4), Fickle(4)) for _ in range(2)]), torch.randn(2, 6, 8, requires_grad=True)
    plain = Stack(copy.deepcopy(module).layers)
    results = []
    for layer in (module, plain):
        y = (
            run_checkpointed(lambda z, layer=layer: layer(z, None, Context(POS)).y, x)
            if recompute
            else layer(x, None, Context(POS)).y
        )
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)
    assert module.layers[0].layers[0].calls == 1


def test_buckets_do_not_flip_between_forward_and_backward() -> None:
    """Reconstructed inputs differ in the last bit; the gradients are still those of the forward's own buckets."""
    torch.manual_seed(0)

    class Sign(Layer):
        d = 12

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
            side = choice(lambda: self.linear(x) > 0)
            return Out(torch.where(side, 3.0, -1.0) * x, state)

    reversible = Reversible([Coupled(Sign(), Sign()) for _ in range(12)])
    plain = Stack(copy.deepcopy(reversible).layers)
    x, pos = torch.randn(8, 512, 24), torch.arange(512).expand(8, -1)
    grads = []
    for module in (reversible, plain):
        inputs = x.clone().requires_grad_()
        module(inputs, None, Context(pos)).y.sin().sum().backward()
        grads.append(inputs.grad)
    assert (grads[0] - grads[1]).norm() < 1e-3 * grads[1].norm()


def test_a_state_that_came_in_is_not_written_to(float64: None) -> None:
    """A cache is written in place where nothing learns; here gradients are only put off."""
    module, x = stack(Reversible), torch.randn(2, 6, 8)
    state = module.start(2, 6)
    before = [leaf.clone() for _, leaf in leaves(state)]
    ctx = Context(POS, True, below={"task": PerToken(torch.zeros(2, 6, 4))}, source=x[..., :4], source_pos=POS)
    module(x, state, ctx).y.sum().backward()
    assert all(torch.equal(leaf, old) for (_, leaf), old in zip(leaves(state), before, strict=True))


def test_inner_states_are_handed_back(float64: None) -> None:
    ours, theirs = pair(0.0)
    x, below = torch.randn(2, 6, 8), {"task": PerToken(torch.zeros(2, 6, 4))}
    ctx = Context(POS, True, below=below, source=x[..., :4], source_pos=POS, taps=("0", "1.2.input"))
    for name, value in theirs(x, None, ctx).taps.items():
        assert torch.equal(ours(x, None, ctx).taps[name], value)
    assert set(ours(x, None, ctx).taps) == {"0", "1.2.input"}


def test_nothing_kept_grows_with_depth() -> None:
    def of(kind: type[Stack], depth: int) -> int:
        module = kind([Coupled(Attention(QKV(4, 2), Softmax(Causal())), MLP(4)) for _ in range(depth)])
        x = torch.randn(2, 6, 8, requires_grad=True)
        return saved_numbers(module, lambda: module(x, None, Context(POS, True, is_clean=True)))

    assert of(Reversible, 1) == of(Reversible, 8) == 2 * 6 * 8
    assert of(Stack, 8) > 7 * of(Stack, 1) > 0


def test_in_float32_inputs_come_back_to_rounding() -> None:
    ours = Reversible([Coupled(Attention(QKV(16, 4), Softmax(Causal())), MLP(16)) for _ in range(12)])
    exact = copy.deepcopy(ours).double()
    x = torch.randn(2, 6, 32)
    grads: list[Any] = []
    for module, x_in in ((ours, x), (exact, x.double())):
        x_in.requires_grad_()
        module(x_in, None, Context(POS, True)).y.square().sum().backward()
        grads.append(x_in.grad)
    assert (grads[0].double() - grads[1]).norm() < 1e-5 * grads[1].norm()


def test_a_weight_changed_before_the_backward_is_an_error() -> None:
    module = Reversible([Coupled(MLP(4), MLP(4))])
    y = module(torch.randn(2, 6, 8), None, Context(POS)).y
    with torch.no_grad():
        module.layers[0].layers[0].up.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"Reversible cannot invert a MLP\. Pass Coupled blocks, or use Stack"):
        Reversible([MLP(4)])
    sending = Reversible([Coupled(Attention(QKV(4, 2), Explicit(Causal(), up=True)), MLP(4))])
    with pytest.raises(ValueError, match=r"sublayer 0.0 sends up \['scores'\].*Use Stack"):
        sending(torch.randn(2, 6, 8), None, Context(POS, True))
