"""Reversible: a stack that stores no activations, because it recomputes inputs from outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_probability
from kinformer.core.choice import Choices
from kinformer.core.collected_outputs import Collected
from kinformer.core.example import Example
from kinformer.core.function_transforms import first_order
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.residual_block import Join, ResidualBlock, make_norms
from kinformer.core.state import fork, leaves, map_state
from kinformer.nn.depth.stack import Stack
from kinformer.nn.norms.layer import LayerNorm

__all__ = ["Coupled", "Reversible"]


class OntoHalf(Join):
    """A residual join that adds a function of one half of the features to the other half.

        x_onto + dropout(f(norm(x_other)))

    onto: index of the half that is changed, 0 or 1.
    dropout: probability of dropping a feature of f(x) in training.
    """

    def __init__(self, onto: int, dropout: float = 0.0):
        super().__init__()
        self.onto, self.dropout = onto, check_probability("dropout", dropout)

    def compute_branch(self, other: Float[Tensor, "B T W"], f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        """Return the `Out` of f(norm(other)); its y, after dropout, is what is added to the changed half."""
        out = f(norm(other))
        return out._replace(y=F.dropout(out.y, self.dropout, self.training))

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        halves = list(x.chunk(2, -1))
        out = self.compute_branch(halves[1 - self.onto], f, norm)
        halves[self.onto] = halves[self.onto] + out.y
        return out._replace(y=torch.cat(halves, -1))


class Coupled(ResidualBlock):
    """A block of sublayers of width W that update in turn the two halves of a residual stream of width 2W.

    y1 = x1 + F(norm(x2)), y2 = x2 + G(norm(y1)), and so on in turns

    Here x1 and x2 are the halves of the input, y1 and y2 the halves of the output. `Reversible` (a stack that stores no
    activations) needs blocks of this kind; in a plain `Stack` the block computes the same. `Coupled(Attention(QKV(w,
    heads), mechanism), MLP(w))` has d = 2w.

    layers: sublayers added to the first half, the second half, the first half, and so on.
    norm: makes the norm of each sublayer's input from its width.
    dropout: probability of dropping a feature of a sublayer's output in training.

    Source: Gomez et al., 2017, arXiv:1707.04585; with norms Kitaev et al., 2020, arXiv:2001.04451.
    """

    def __init__(self, *layers: Layer, norm: Callable[[int], nn.Module] = LayerNorm, dropout: float = 0.0):
        joins = [OntoHalf(n % 2, dropout) for n in range(len(layers))]
        super().__init__(layers, joins, make_norms(norm, layers))
        self.d *= 2


class Reversible(Stack):
    """A `Stack` of `Coupled` blocks that stores no activations; its backward pass computes them again.

    Choose it for deep models and long rows, if memory matters more than time. Each block updates one half of the
    features from the other half (`Coupled`). The backward pass computes this update again, with the same dropout and
    the same discrete choices, and subtracts it to get the input back. It differentiates one sublayer at a time.

    Gradients equal the gradients of a plain `Stack`, also for aux values, `ctx.source`, `ctx.below` and a decoding
    state. Recomputed inputs are exact up to the rounding of additions, in float32 about 1e-6. The stack is not
    differentiable twice, and is not compiled as one graph. A call without gradients, a call that asks for hidden states
    (`ctx.taps`), and a call that only updates the decoding state (`ctx.remember`) run as a plain `Stack`.

    layers: `Coupled` blocks.
    norm: norm of the output, over both halves together; None for none.

    Errors: ValueError for blocks of another kind, and if a sublayer passes values to the layer above (`Out.up`), which
    would have to be stored. Source: Gomez et al., 2017, arXiv:1707.04585; Kitaev et al., 2020, arXiv:2001.04451,
    section 3.
    """

    def __init__(self, layers: Iterable[Layer], norm: nn.Module | None = None):
        super().__init__(layers, norm)
        other = [type(layer).__name__ for layer in self.layers if not isinstance(layer, Coupled)]
        if other:
            raise ValueError(f"Reversible cannot invert a {other[0]}. Pass Coupled blocks, or use Stack")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        if not torch.is_grad_enabled() or ctx.taps or ctx.remember:
            return super().forward(x, state, ctx)
        run = ReversiblePass(self.layers, state, ctx)
        tensors = ReversibleFunction.apply(run, x, *run.outside_tensors())
        out = fill_out(run.hollow, tensors)
        return out._replace(y=out.y if self.norm is None else self.norm(out.y))


class ReversibleFunction(torch.autograd.Function):
    """A forward pass of `Reversible` as one autograd operation; it saves only y and outside tensors."""

    @staticmethod
    def forward(node: Any, run: "ReversiblePass", x: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = flatten_out(run.forward(x))
        node.run = run
        node.save_for_backward(outputs[0], *inputs)
        node.mark_non_differentiable(*(tensor for tensor in outputs if not tensor.is_floating_point()))
        return outputs

    @staticmethod
    @first_order
    def backward(node: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, *inputs = node.saved_tensors
        return None, *node.run.backward(y, inputs, fill_out(node.run.hollow, gradients))


class Sublayer(NamedTuple):
    """A sublayer of a `Reversible` stack and its place.

    n: index of the block.
    i: index of the sublayer in the block.
    block: the block.
    """

    n: int
    i: int
    block: Coupled

    @property
    def half(self) -> int:
        """The index of the half of the features that the sublayer changes."""
        return self.i % 2

    @property
    def place(self) -> str:
        return f"{self.n}.{self.i}"

    def select_part(self, whole: Out) -> Out:
        """Return `whole`, the output of all blocks, with only this sublayer's aux values and state."""
        aux = {name: value for name, value in whole.aux.items() if name.startswith(f"{self.place}.")}
        return whole._replace(aux=aux, state=None if whole.state is None else whole.state[self.n][self.i])

    def compute_branch(self, other: Tensor, read: Callable[[Tensor], Out]) -> Out:
        """Compute what the sublayer adds to its half, from the other half; `read` calls the sublayer."""
        join: Any = self.block.joins[self.i]
        return join.compute_branch(other, read, self.block.norms[self.i])

    def rerun(self, other: Tensor, state: State | None, ctx: Context) -> Out:
        """Compute in the backward pass what `compute_branch` gave in the forward pass."""
        old = None if state is None else state[self.n][self.i]
        return self.compute_branch(other, lambda z: self.block.layers[self.i](z, old, ctx.for_sublayer(self.i)))


@dataclass(eq=False)
class ReversiblePass:
    """One forward pass of `Reversible`, with everything that its backward pass needs to run it again.

    blocks: the `Coupled` blocks.
    state: decoding state before the pass.
    ctx: context of the pass.
    replays: random state and discrete choices of each sublayer, in order.
    hollow: the pass's `Out` with empty tensors in place of its own, so that only its structure is kept.
    """

    blocks: nn.ModuleList
    state: State | None
    ctx: Context
    replays: list["Replay"] = field(default_factory=list)
    hollow: Out = Out(torch.empty(0))  # noqa: RUF009  (never written to)

    @property
    def steps(self) -> list[Sublayer]:
        return [step for n in range(len(self.blocks)) for step in self.sublayers_of(n)]

    def sublayers_of(self, n: int) -> list[Sublayer]:
        """Return the sublayers of block n."""
        block: Any = self.blocks[n]
        return [Sublayer(n, i, block) for i in range(len(block.layers))]

    def outside_tensors(self) -> list[Tensor]:
        """Return every input of the pass except x: tensors of the context and the state, and the weights."""
        return [*(leaf for _, leaf in leaves(self._outside_state())), *self.blocks.parameters()]

    def forward(self, x: Tensor) -> Out:
        """Return the `Out` of all blocks, and record what the backward pass needs."""
        # without gradients caches are written in place; the backward pass needs the old ones, so the state is forked
        whole = Collected(self.ctx, None if self.state is None else fork(self.state), rising=True)
        for n in range(len(self.blocks)):
            x = whole.call(n, partial(self._run_block, n), x).y
        out = whole.make_out(x)
        self.hollow = fill_out(out, [torch.empty(0)] * len(flatten_out(out)))
        return out

    def _run_block(self, n: int, x: Tensor, state: State | None, ctx: Context) -> Out:
        collected, halves = Collected(ctx, state), list(x.chunk(2, -1))
        for step in self.sublayers_of(n):
            self.replays.append(Replay.capture(x.device))
            with self.replays[-1].choices.record():
                out = step.compute_branch(
                    halves[1 - step.half], partial(collected.call, step.i, step.block.layers[step.i])
                )
            if out.up:
                sent = f"sublayer {step.place} sends up {sorted(out.up)}"
                raise ValueError(f"{sent}, which Reversible would have to store. Use Stack")
            halves[step.half] = halves[step.half] + out.y
        return collected.make_out(torch.cat(halves, -1))

    def backward(self, y: Tensor, tensors: Sequence[Tensor], gradient: Out) -> list[Tensor | None]:
        """Return the gradients of x and of `tensors`, given y and the gradients of the outputs.

        y: output of the forward pass.
        tensors: the tensors of `outside_tensors`.
        gradient: gradients of y, aux values and the new state, as an `Out`.
        """
        weights = list(self.blocks.parameters())
        loose = [_leaf(tensor) for tensor in tensors[: len(tensors) - len(weights)]]
        ctx, state = self._with_tensors(loose)
        learned = [n for n, tensor in enumerate([*loose, *weights]) if tensor.requires_grad]
        inputs = [tensor for tensor in [*loose, *weights] if tensor.requires_grad]
        gradients: list[Tensor | None] = [None] * len(tensors)
        halves, grads = list(y.chunk(2, -1)), list(gradient.y.chunk(2, -1))
        for step, replay in zip(reversed(self.steps), reversed(self.replays), strict=True):
            other = halves[1 - step.half].detach().requires_grad_()
            with torch.enable_grad(), replay.restore():
                out = step.rerun(other, state, ctx)
            step_gradient = step.select_part(gradient)._replace(y=grads[step.half])
            through, *rest = _grads(out, step_gradient, [other, *inputs])
            grads[1 - step.half] = _add(grads[1 - step.half], through)
            for n, grad in zip(learned, rest, strict=True):
                gradients[n] = _add(gradients[n], grad)
            halves[step.half] = halves[step.half] - out.y.detach()
        return [torch.cat(grads, -1), *gradients]

    def _outside_state(self) -> State:
        return (() if self.ctx.source is None else self.ctx.source, dict(self.ctx.below), self.state or ())

    def _with_tensors(self, tensors: Sequence[Tensor]) -> tuple[Context, State | None]:
        """Return the context and the state with these tensors in them."""
        rest = iter(tensors)
        source, below, state = map_state(lambda name, leaf: next(rest), self._outside_state())
        ctx = self.ctx.replace(source=None if self.ctx.source is None else source, below=below)
        return ctx, None if self.state is None else state


@dataclass(frozen=True, eq=False)
class Replay:
    """Everything except its inputs that the result of a sublayer's call in `Reversible` depends on.

    device: device of x.
    cpu: random state of the CPU.
    cuda: random state of the GPU; None on other devices.
    autocast: whether autocast is on, and its dtype.
    choices: discrete choices of the call, such as the keys that a sparse mechanism selects.
    """

    device: torch.device
    cpu: Tensor
    cuda: Tensor | None
    autocast: tuple[bool, torch.dtype]
    choices: Choices = field(default_factory=Choices)

    @staticmethod
    def capture(device: torch.device) -> "Replay":
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        return Replay(device, torch.get_rng_state(), cuda, autocast)

    @contextmanager
    def restore(self) -> Iterator[None]:
        """Restore the recorded random state, autocast and choices inside a `with` block, then the current."""
        enabled, dtype = self.autocast
        with torch.random.fork_rng([] if self.cuda is None else [self.device]):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            with torch.autocast(self.device.type, dtype, enabled), self.choices.replay():
                yield


def flatten_out(out: Out) -> tuple[Tensor, ...]:
    """Return y, the aux values and the tensors of the state of `out` as one tuple."""
    state = () if out.state is None else out.state
    return out.y, *out.aux.values(), *(leaf for _, leaf in leaves(state))


def fill_out(out: Out, tensors: Iterable[Tensor]) -> Out:
    """Return an `Out` of the same structure as `out` with other tensors in it.

    tensors: the new tensors, in the order of `flatten_out`.
    """
    rest = iter(tensors)
    y, aux = next(rest), {name: next(rest) for name in out.aux}
    state = None if out.state is None else map_state(lambda name, leaf: next(rest), out.state)
    return out._replace(y=y, aux=aux, state=state)


def _grads(out: Out, gradient: Out, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    pairs = [
        (outputs, grad)
        for outputs, grad in zip(flatten_out(out), flatten_out(gradient), strict=True)
        if outputs.requires_grad
    ]
    outputs, gradients = zip(*pairs, strict=True) if pairs else ((), ())
    return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True) if outputs else (None,) * len(inputs)


def _add(a: Tensor | None, b: Tensor | None) -> Any:
    return b if a is None else a if b is None else a + b


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _example() -> Reversible:
    def attention() -> kf.Attention:
        return kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal()))

    return Reversible([Coupled(attention(), kf.MLP(8)), Coupled(attention())], LayerNorm(16))


EXAMPLES = (
    Example(
        _example, breaks={"compiles": "its backward pass computes layers again, so torch.compile finds no single graph"}
    ),
)
