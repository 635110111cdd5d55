"""CompiledSteps: decoding steps of a model as one compiled graph, with caches of a fixed size."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Context, Decoding, Device, Dtype, Out, State
from kinformer.core.model import display_name
from kinformer.core.state import leaves, map_state

LEAST_SLOTS = 128  # rows are rounded up to a power of two from here on, so that similar lengths share a graph
EAGER = 4  # steps that run without the graph first, to measure what it saves
GRAPHS = 64  # graphs of one process: one for each model, batch and rounded length
BACKEND = "inductor"
EMPTY = torch.empty(0)

Step = Callable[..., tuple[Tensor, list[Tensor]]]


class StepTimes(NamedTuple):
    """Times of decoding steps, in seconds.

    compilation: time of the first compiled step, which makes the graph.
    eager: shortest time of a step without the graph.
    compiled: shortest time of a step with it.
    """

    compilation: float
    eager: float
    compiled: float

    @property
    def break_even(self) -> float:
        """Number of tokens after which the compilation has paid; infinite if the graph is not faster."""
        saved = self.eager - self.compiled
        return self.compilation / saved if saved > 0 else float("inf")


class CompiledSteps:
    """A model whose steps of one token run as one compiled graph; longer chunks of tokens run as usual.

    Choose it to generate many tokens: a step then takes about as long as its products, but the compilation takes a
    minute. It has `start` and `logits` as the model does, so it can be used in its place. The caches have a fixed size,
    a power of two, so one graph serves all tokens of a row and later rows of a similar length. Each step attends to all
    slots of the cache, also to the empty ones.

    model: model that generates.

    Errors: ValueError, in one line, from the first step of a model whose step is no single graph, or whose state
    changes its size.
    """

    def __init__(self, model: Any):
        self.model = model
        self._steps: dict[Any, Step] = {}
        self._eager: list[float] = []
        self._compiled: list[float] = []
        self._compilation = 0.0

    @property
    def times(self) -> StepTimes | None:
        """Times of the steps so far; None before the second compiled step."""
        if not self._compiled:
            return None
        return StepTimes(self._compilation, min(self._eager), min(self._compiled))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return self.model.start(batch, round_length(length), dtype=dtype, device=device)

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        ctx: Context | None = None,
        *,
        last: bool = False,
        **inputs: Any,
    ) -> Out:
        """Return the model's logits for the tokens, or with `last` only for the last one.

        If `ctx` is None, the call is not compiled.
        """
        if state is None or tokens.shape[1] != 1 or inputs:
            return self.model.logits(tokens, state, ctx, last=last, **inputs)
        began = time.perf_counter()
        if len(self._eager) < EAGER:
            out = self.model.logits(tokens, state, ctx, last=last)
            self._eager.append(time.perf_counter() - began)
            return out
        flat = FlatState.of(state)
        key = flat.key, None if ctx is None else ctx.decoding.max_new_tokens
        if is_new := key not in self._steps:
            self._steps[key] = _make_step(self.model, flat)
        y, tensors = self._call(self._steps[key], tokens, ctx, flat)
        if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in flat.tensors]:
            raise ValueError(f"{display_name(self.model)} cannot run compiled: its state changes its size; leave out compile")
        seconds = time.perf_counter() - began
        if is_new:
            self._compilation += seconds
        else:
            self._compiled.append(seconds)
        return Out(y, flat.rebuild(tensors))

    def _call(self, step, tokens, ctx, flat):
        # copies, because a view into the growing rows has other strides at each step, which would compile again
        inputs = [tokens] if ctx is None else [tokens, ctx.pos, ctx.decoding.step]
        tokens, *inputs = (x.clone(memory_format=torch.contiguous_format) for x in inputs)
        try:
            return step(tokens, flat.tensors, *inputs, *([] if ctx is None else [ctx.decoding.max_new_tokens]))
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise ValueError(
                f"{display_name(self.model)} cannot run compiled: {type(error).__name__}: {first}. Leave out compile"
            ) from error


class FlatState(NamedTuple):
    """The tensors of a decoding state, each once, and the tree that holds them.

    tensors: the tensors; one that several layers share is there once.
    places: for each leaf of the tree, the index of its tensor.
    tree: a state of the same form with empty tensors.
    """

    tensors: list[Tensor]
    places: tuple[int, ...]
    tree: State

    @staticmethod
    def of(state: State) -> "FlatState":
        """Return the flat form of a state.

        state: the state.
        """
        known: dict[int, int] = {}
        tensors, places = [], []
        for _, leaf in leaves(state):
            if id(leaf) not in known:
                known[id(leaf)] = len(tensors)
                tensors.append(leaf)
            places.append(known[id(leaf)])
        return FlatState(tensors, tuple(places), map_state(lambda _, __: EMPTY, state))

    @property
    def key(self) -> tuple:
        """Sizes and sharing of the tensors; states with the same key run in the same graph."""
        return self.places, *((tuple(tensor.shape), tensor.dtype) for tensor in self.tensors)

    def rebuild(self, tensors: Sequence[Tensor]) -> State:
        """Return the tree with other tensors.

        tensors: a tensor for each of `tensors`.
        """
        places = iter(self.places)
        return map_state(lambda _, __: tensors[next(places)], self.tree)


def _make_step(model: Any, flat: FlatState) -> Step:
    places, count, tree = flat.places, len(flat.tensors), FlatState([], flat.places, flat.tree)
    firsts = [places.index(i) for i in range(count)]

    def step(tokens, tensors, pos=None, done=None, most=0):
        ctx = None if pos is None else Context(pos, run=True, decoding=Decoding(done, most), is_clean=True)
        out = model.logits(tokens, tree.rebuild(tensors), ctx, last=True)
        new = [leaf for _, leaf in leaves(out.state)]
        return out.y, [new[first] for first in firsts]

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND)


def round_length(length: int) -> int:
    """Return the next power of two, at least 128.

    length: number of tokens.
    """
    return max(LEAST_SLOTS, 1 << (length - 1).bit_length())
