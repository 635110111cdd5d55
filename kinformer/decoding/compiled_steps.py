"""CompiledSteps: decoding steps of a model as one compiled graph, with caches of a fixed size."""

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from math import inf
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Context, Decoding, Device, Dtype, Out, State
from kinformer.core.model import display_name
from kinformer.core.state import leaves, map_state

LEAST_SLOTS = 128  # lengths are rounded up to a power of two from here on, so that similar lengths share a graph
EAGER = 4  # steps that run uncompiled first, to measure what the graph saves
GRAPHS = 64  # graphs that torch keeps for the code of a step: one for each model, number of rows and rounded length
ONE_AT_A_TIME = Lock()  # the stance of the compiler belongs to the whole process
RECOMPILED = "Recompilation triggered"  # begins torch's error if a graph does not fit and guards were skipped
BACKEND = "inductor"

Graph = Callable[["FlatState", Sequence[Tensor]], tuple[Tensor, bool]]


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

    Choose it for long texts where `times` show that it pays: the compilation takes about twenty seconds for 4 layers,
    and two minutes for 30. `generate` makes one for `compile=True`; pass your own to keep its graphs for later calls,
    and to read its `times`. It has `start` and `logits` as the model does. The caches have a fixed size, a power of
    two, so that one graph serves all tokens of a row and other rows of similar length. A step writes the new state
    into the tensors of the old one, and attention reads only the used slots. The first steps run uncompiled, for
    `times`.

    Between two tokens of a row, only the values of weights may change. The graph does not notice other changes of the
    model until the next row.

    A few mechanisms sort or gather keys and need the number of keys as a constant. A second graph then reads all slots.

    model: model that generates.

    Errors: ValueError, in one line, from the first compiled step of a model that does not compile to a single graph, or
    whose decoding state changes its size.
    """

    def __init__(self, model: Any):
        self.model = model
        self._graphs: dict[Hashable, Graph] = {}
        self._uncompiled = 0  # steps so far without a graph
        self._times = StepTimes(0.0, inf, inf)
        self._latest: FlatState | None = None  # state that the last compiled step returned

    @property
    def reads(self) -> str:
        """The kind of data that the model reads, such as "text"."""
        return self.model.reads

    @property
    def times(self) -> StepTimes | None:
        """Times of the steps so far; None before the second step of a graph."""
        return self._times if self._times.compiled < inf else None

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        self._latest = None  # frees the caches of an earlier row
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
        if self._uncompiled < EAGER:
            out = self.model.logits(tokens, state, ctx, last=last)
            _wait_for_device(out.y)
            self._uncompiled += 1
            self._times = self._times._replace(eager=min(self._times.eager, time.perf_counter() - began))
            return out
        latest = self._latest if self._latest is not None and self._latest.tree is state else None
        flat = latest or FlatState.copy_of(state)
        key = flat.sizes, ctx is None, ctx is None or ctx.decoding is None
        graph = self._graphs.get(key)
        if graph is None:
            self._graphs[key] = _compile_step(self.model, flat, flat.slots)
        guards_hold = latest is not None and graph is not None  # they were checked at the first step of the row
        y = self._run(key, flat, _inputs_of(tokens, ctx), guards_hold)
        _wait_for_device(y)
        seconds = time.perf_counter() - began
        if self._graphs[key] is not graph:
            self._times = self._times._replace(compilation=self._times.compilation + seconds)
        else:
            self._times = self._times._replace(compiled=min(self._times.compiled, seconds))
        self._latest = flat._replace(used=flat.used and flat.used + 1)
        return Out(y, flat.tree)

    def _run(self, key: Hashable, flat: "FlatState", inputs: Sequence[Tensor], guards_hold: bool) -> Tensor:
        """Return the logits of a step, after its errors are put into one line."""
        name = display_name(self.model)
        try:
            y, is_of_fixed_size = self._run_graph(key, flat, inputs, guards_hold)
        except torch._dynamo.exc.TorchDynamoException as error:
            lines = str(error).strip().splitlines() or [""]
            raise ValueError(
                f"{name} cannot decode compiled: got {type(error).__name__}: {lines[0]}. Leave compile out"
            ) from error
        if not is_of_fixed_size:
            raise ValueError(
                f"{name} cannot decode compiled: got a decoding state that changes its size, expected a fixed size. "
                "Leave compile out"
            )
        return y

    def _run_graph(
        self, key: Hashable, flat: "FlatState", inputs: Sequence[Tensor], guards_hold: bool
    ) -> tuple[Tensor, bool]:
        """Run a graph. If it holds the first number of used slots as a constant, replace it by one for all slots."""
        # by default, torch does not guard against hooks that are added later
        hooks = nullcontext() if guards_hold else torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
        try:
            with ONE_AT_A_TIME, torch.compiler.set_stance("default", skip_guard_eval_unsafe=guards_hold), hooks:
                return self._graphs[key](flat, inputs)
        except RuntimeError as error:
            if not str(error).startswith(RECOMPILED):
                raise
        self._graphs[key] = _compile_step(self.model, flat, None)
        return self._run_graph(key, flat, inputs, guards_hold=False)


def _wait_for_device(y: Tensor) -> None:
    """Wait until a device (GPU) has computed y, so that times include its work."""
    if y.device.type != "cpu":
        torch.accelerator.synchronize(y.device)


def _inputs_of(tokens: Int[Tensor, "B 1"], ctx: Context | None) -> list[Tensor]:
    """Return the tensors of a step's tokens and context."""
    decoding = None if ctx is None else ctx.decoding
    counts = [] if decoding is None else [decoding.step, torch.tensor(decoding.max_new_tokens)]
    inputs = [tokens, *([] if ctx is None else [ctx.pos]), *counts]
    # views of the growing rows have other strides at each step, which would compile the graph again
    return [x.clone(memory_format=torch.contiguous_format) for x in inputs]


class FlatState(NamedTuple):
    """A decoding state with tensors of its own, and the list of them.

    tree: the state.
    tensors: its tensors; one that several layers share is there once.
    places: for each leaf of the tree, the index of its tensor.
    slots: size of the largest caches with a position for each key; None without such caches.
    used: number of slots at the beginning of these caches that hold all their keys, at least 1; 0 without such caches.
    """

    tree: State
    tensors: list[Tensor]
    places: tuple[int, ...]
    slots: int | None
    used: int

    @staticmethod
    def copy_of(state: State) -> "FlatState":
        """Return a copy of a state, whose tensors are contiguous and share no memory.

        state: the state.
        """
        index: dict[int, int] = {}
        tensors, places, used = list[Tensor](), [], 0
        named = leaves(state)
        slots = max((leaf.shape[1] for name, leaf in named if name == "pos" and leaf.dim() == 2), default=0) or None
        for name, leaf in named:
            if id(leaf) not in index:
                index[id(leaf)] = len(tensors)
                tensors.append(leaf.clone(memory_format=torch.contiguous_format))
                if name == "pos" and leaf.shape[1:] == (slots,):
                    last = (leaf >= 0).any(0).nonzero()[-1:, 0].tolist()
                    used = max(used, 1, *(index + 1 for index in last))
            places.append(index[id(leaf)])
        remaining = iter(places)
        tree = map_state(lambda _, __: tensors[next(remaining)], state)
        return FlatState(tree, tensors, tuple(places), slots, used)

    @property
    def sizes(self) -> Hashable:
        """Sizes and sharing of the tensors; states with equal sizes run in the same graph."""
        return self.places, self.slots, tuple([(x.shape, x.dtype, x.device) for x in self.tensors])

    def with_tensors(self, tensors: Sequence[Tensor]) -> State:
        """Return the tree with other tensors.

        tensors: one for each of `tensors`.
        """
        places = iter(self.places)
        return map_state(lambda _, __: tensors[next(places)], self.tree)


def _compile_step(model: Any, flat: FlatState, slots: int | None) -> Graph:
    """Return a compiled step for states of the form of `flat`.

    The step writes the new state into the tensors. It returns the logits, and whether all tensors keep their size.
    Attention reads only the used slots of caches with `slots` slots; with None, it reads all slots.
    """
    empty = torch.empty(0)
    form = FlatState(map_state(lambda _, __: empty, flat.tree), [], flat.places, None, 0)
    firsts = [flat.places.index(place) for place in range(len(flat.tensors))]

    def step(
        tensors: list[Tensor],
        used: Tensor,
        tokens: Int[Tensor, "B 1"],
        pos: Int[Tensor, "B 1"] | None = None,
        number: Int[Tensor, "#B 1"] | None = None,
        limit: Int[Tensor, ""] | None = None,
    ) -> tuple[Tensor, bool]:
        # the limit is a tensor here, because each new integer would compile the graph again
        decoding = None if number is None else Decoding(number, cast(int, limit))
        used_slots = {} if slots is None else {slots: used.shape[0]}
        ctx = None if pos is None else Context(pos, run=True, decoding=decoding, is_clean=True, used_slots=used_slots)
        out = model.logits(tokens, form.with_tensors(tensors), ctx, last=True)
        new = [leaf for _, leaf in leaves(out.state)]
        new = [new[first] for first in firsts]
        if any(after.shape != before.shape for after, before in zip(new, tensors, strict=True)):
            return out.y, False
        for after, before in zip(new, tensors, strict=True):
            if after is not before:
                before.copy_(after)
        return out.y, True

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    on_cpu = all(x.device.type == "cpu" for x in flat.tensors)
    options: dict[str, Any] | None = {"cpp_wrapper": True} if BACKEND == "inductor" and on_cpu else None
    # dynamic=False: all models share the code of `step`, so other sizes of another model would become variables
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND, options=options)

    def run(flat: FlatState, inputs: Sequence[Tensor]) -> tuple[Tensor, bool]:
        # a graph takes the sizes of tensors as variables, but not numbers
        used = torch.empty(0 if slots is None else min(flat.used + 1, slots), 0)
        if slots is not None:
            torch._dynamo.maybe_mark_dynamic(used, 0)
        return compiled(flat.tensors, used, *inputs)

    return run


def round_length(length: int) -> int:
    """Return the next power of two above a length, at least 128.

    length: number of tokens.
    """
    return max(LEAST_SLOTS, 1 << length.bit_length())
