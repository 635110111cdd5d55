"""CompiledSteps: decoding steps of a model as one compiled graph, with caches of a fixed size."""

import time
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Context, Decoding, Device, Dtype, Out, State
from kinformer.core.model import display_name
from kinformer.core.state import leaves, map_state

LEAST_SLOTS = 128  # lengths are rounded up to a power of two from here on, so that similar lengths share a graph
EAGER = 4  # steps that run uncompiled first, to measure what the graph saves
GRAPHS = 64  # largest number of graphs in a process: one for each model, number of rows and rounded length
BACKEND = "inductor"

Step = Callable[..., tuple[Tensor, list[Tensor]]]


class StepTimes(NamedTuple):
    """Times of decoding steps, in seconds.

    compilation: time of the first steps of all graphs, which compile them.
    eager: shortest time of an uncompiled step.
    compiled: shortest time of a compiled step.
    """

    compilation: float
    eager: float
    compiled: float

    @property
    def break_even(self) -> float:
        """Number of tokens after which the compilation has paid; infinite if the graph is not faster."""
        saved = self.eager - self.compiled
        return self.compilation / saved if saved > 0 else inf


class CompiledSteps:
    """A model whose steps of one token run as one compiled graph; longer chunks of tokens run uncompiled.

    Choose it for long texts where `times` show that it pays: the compilation takes some ten seconds. `generate` makes
    one for `compile=True`; pass your own to keep its graphs for later calls, and to read its `times`. It has `start`
    and `logits` as the model does. The caches have a fixed size, a power of two, so that one graph serves all tokens of
    a row and other rows of similar length. Each step attends to all slots of a cache, and masks the empty ones. The
    first steps run uncompiled, for `times`.

    model: model that generates.

    Errors: ValueError, in one line, from the first compiled step of a model that does not compile to a single graph, or
    whose decoding state changes its size.
    """

    def __init__(self, model: Any):
        self.model = model
        self._steps: dict[Hashable, Step] = {}
        self._uncompiled = 0  # steps so far without a graph
        self._times = StepTimes(0.0, inf, inf)

    @property
    def reads(self) -> str:
        """The kind of data that the model reads, such as "text"."""
        return self.model.reads

    @property
    def times(self) -> StepTimes | None:
        """Times of the steps so far; None before the second step of a graph."""
        return self._times if self._times.compiled < inf else None

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        try:
            return self.model.start(batch, round_length(length), dtype=dtype, device=device)
        except ValueError:  # the rounded length is beyond a limit of the model
            return self.model.start(batch, length, dtype=dtype, device=device)

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        ctx: Context | None = None,
        *,
        last: bool = False,
        **inputs: Any,
    ) -> Out:
        """Return the model's logits for the tokens, or with `last` only for the last one."""
        if state is None or tokens.shape[1] != 1 or inputs:
            return self.model.logits(tokens, state, ctx, last=last, **inputs)
        began = time.perf_counter()
        times = self._times
        if self._uncompiled < EAGER:
            out = self.model.logits(tokens, state, ctx, last=last)
            self._uncompiled += 1
            self._times = times._replace(eager=min(times.eager, time.perf_counter() - began))
            return out
        flat = FlatState.of(state)
        key = flat.sizes, ctx is None, ctx is None or ctx.decoding is None
        if is_new := key not in self._steps:
            self._steps[key] = _compile_step(self.model, flat)
        y, tensors = self._run(self._steps[key], tokens, ctx, flat.tensors)
        seconds = time.perf_counter() - began
        if is_new:
            self._times = times._replace(compilation=times.compilation + seconds)
        else:
            self._times = times._replace(compiled=min(times.compiled, seconds))
        return Out(y, flat.rebuild(tensors))

    def _run(
        self, step: Step, tokens: Int[Tensor, "B 1"], ctx: Context | None, tensors: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        decoding = None if ctx is None else ctx.decoding
        counts = [] if decoding is None else [decoding.step, torch.tensor(decoding.max_new_tokens)]
        inputs = [tokens, *([] if ctx is None else [ctx.pos]), *counts]
        # views of the growing rows have other strides at each step, which would compile the graph again
        inputs = [x.clone(memory_format=torch.contiguous_format) for x in inputs]
        name = display_name(self.model)
        try:
            y, new = step(tensors, *inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            lines = str(error).strip().splitlines() or [""]
            raise ValueError(
                f"{name} cannot decode compiled: got {type(error).__name__}: {lines[0]}. Leave compile out"
            ) from error
        if any(after.shape != before.shape for after, before in zip(new, tensors, strict=True)):
            raise ValueError(
                f"{name} cannot decode compiled: got a decoding state that changes its size, expected a fixed size. "
                "Leave compile out"
            )
        return y, new


class FlatState(NamedTuple):
    """The tensors of a decoding state, each once, and the tree that holds them.

    tensors: the tensors; one that several layers share is there once.
    places: for each leaf of the tree, the index of its tensor.
    tree: a state of the same form, with empty tensors.
    """

    tensors: list[Tensor]
    places: tuple[int, ...]
    tree: State

    @staticmethod
    def of(state: State) -> "FlatState":
        """Return the flat form of a state.

        state: the state.
        """
        index: dict[int, int] = {}
        tensors, places = list[Tensor](), []
        for _, leaf in leaves(state):
            if id(leaf) not in index:
                index[id(leaf)] = len(tensors)
                tensors.append(leaf)
            places.append(index[id(leaf)])
        empty = torch.empty(0)
        return FlatState(tensors, tuple(places), map_state(lambda _, __: empty, state))

    @property
    def sizes(self) -> Hashable:
        """Sizes and sharing of the tensors; states with equal sizes run in the same graph."""
        return self.places, tuple([(x.shape, x.dtype, x.device) for x in self.tensors])

    def rebuild(self, tensors: Sequence[Tensor]) -> State:
        """Return the state with other tensors.

        tensors: one for each of `tensors`.
        """
        places = iter(self.places)
        return map_state(lambda _, __: tensors[next(places)], self.tree)


def _compile_step(model: Any, flat: FlatState) -> Step:
    """Return a compiled step for states of the form of `flat`."""
    form = flat._replace(tensors=[])
    firsts = [flat.places.index(place) for place in range(len(flat.tensors))]

    def step(
        tensors: list[Tensor],
        tokens: Int[Tensor, "B 1"],
        pos: Int[Tensor, "B 1"] | None = None,
        number: Int[Tensor, "#B 1"] | None = None,
        limit: Int[Tensor, ""] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        # the limit is a tensor here, because each new integer would compile the graph again
        decoding = None if number is None else Decoding(number, cast(int, limit))
        ctx = None if pos is None else Context(pos, run=True, decoding=decoding, is_clean=True)
        out = model.logits(tokens, form.rebuild(tensors), ctx, last=True)
        new = [leaf for _, leaf in leaves(out.state)]
        return out.y, [new[first] for first in firsts]

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND)


def round_length(length: int) -> int:
    """Return the next power of two, at least 128.

    length: number of tokens.
    """
    return max(LEAST_SLOTS, 1 << (length - 1).bit_length())
