"""Memory: what widens what a layer may read by keeping hidden states of the past."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.heads import Selection, StateSpec, cut
from kinformer.core.kv_cache import first_position, surviving_columns
from kinformer.core.layer import Context, State
from kinformer.core.pattern import Pattern, narrow_pattern, pair_mask
from kinformer.core.state import map_state
from kinformer.core.token_positions import next_positions

FAR = 4096  # positions into a row at which a pattern that knows no bound of its reach is tried


class MemoryCost(NamedTuple):
    """What each query reads beside its own segment of `length` tokens, in states: what a memory costs.

    memory: states that are kept as they are. compressed: states that stand for several tokens. searched: keys that are
        scored, of which only the best are read.
    """

    length: int
    memory: int
    compressed: int = 0
    searched: int = 0

    @property
    def pairs(self) -> int:
        """Scores of one segment and head: L^2 + L (memory + compressed + searched)."""
        return self.length * (self.length + self.memory + self.compressed + self.searched)


class Memory(nn.Module, ABC):
    """Hidden states kept from chunk to chunk, from which a layer projects further keys and values in training.

    It keeps hidden states rather than keys, because keys that were projected before the last update train their
    projection wrongly. Attention reads what lies in an earlier segment without gradients, wherever a row was cut, so a
    memory itself detaches nothing. In training it is always there: a call without a state begins a fresh one.

    `kind` is the class of its state: by it Attention tells a memory's state from a cache of keys. `reads` is the set of
    keys that a query finds, the own segment of `length` positions and what is kept before it: the layer's pattern must
    say the same. `cached` says that a cache of keys under that pattern holds all that it remembers, so that decoding
    needs no memory; where it does not, the memory is there in decoding too, and in calls without a state.
    """

    kind: type
    length: int
    reads: Pattern
    cached: bool = True
    sharp: bool = True

    @property
    def gradient_stops(self) -> Pattern:
        """Pairs of a query and a token through which no gradient flows: the law `gradients` looks there."""
        from kinformer.core.patterns.segment import Segment

        return ~Segment(self.length, 0)

    @property
    def receptive_field(self) -> Pattern:
        """The tokens of which a query can hear something: more than `reads` where one position stands for several.

        Which of them are kept may hang on others, where it is chosen by `core.choice.choice`.
        """
        return self.reads

    def memory_cost(self) -> MemoryCost:
        """What a query reads of it."""
        return MemoryCost(self.length, int(self.reads.reach()[0]) - self.length + 1)

    @abstractmethod
    def start(self, spec: StateSpec, width: int) -> State:
        """The memory before the first token."""

    def make_state(self, spec: StateSpec, width: int, ctx: Context) -> State:
        """The same for a call without a state; its positions are those of every other layer's."""

        def share_positions(name: str, leaf: Tensor) -> Tensor:
            if name not in ("pos", "now"):
                return leaf
            return ctx.memo.get(lambda: leaf, "fresh", name, tuple(leaf.shape), leaf.device)

        return map_state(share_positions, self.start(spec, width))

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B T D"], state: State, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], State, dict[str, Tensor]]:
        """What to read (states and their positions), the next state, and aux.

        `read(x, source, real=None) -> Read` is the layer's own attention by content alone, with detached weights;
        `real` [B S] marks the states of the source that are there, where not all are.
        """

    def next_state(self, state: State, ctx: Context, received_attention: Callable[[], Float[Tensor, "B S"]]) -> State:
        """The state once the layer has read; `received_attention()` gives each source slot's share of the attention."""
        return state

    def segment_cuts(self, ctx: Context) -> list[int]:
        """Columns that begin a new segment of some row that was in another one before, one look for all layers.

        A chunk is cut there, so that what follows finds what the segment left.
        """

        def find() -> list[int]:
            pos = ctx.pos
            if pos.shape[1] < 2 or not len(pos):
                return []
            segment = torch.where(pos >= 0, pos // self.length, -1).cummax(1).values
            ends = (segment[:, 1:] > segment[:, :-1]) & (segment[:, :-1] >= 0)
            return [n + 1 for n, end in enumerate(ctx.memo.look(ends.any(0))) if end]

        return ctx.memo.get(find, "segment ends", ctx.pos, self.length)

    def check_pattern(self, pattern: Pattern, heads: int, d: int) -> None:
        """ValueError unless this memory and a layer's pattern say the same, and it keeps states of the layer's width.

        No query may want a key that is not kept. What only the memory holds must be read; of what a cache would hold
        too the pattern may read less.
        """
        back = int(self.reads.reach()[0])
        # a pattern that says how far back it reaches is tried near the start, others far from it
        first = -(-(back if pattern.reach()[0] <= back else back + FAR) // self.length) * self.length
        with torch.device("cpu"):  # also where a model is built on meta, and masks have no numbers
            at = torch.arange(first + self.length)
            q, k = at[None, None, first:], at[None, None]
            readable = pair_mask(pattern, q, k, range(heads)).any(1)[0]  # [T S]: by any head
            remembered = pair_mask(self.reads, q, k, range(1))[0, 0]
        problems = [("reads keys that the memory does not keep", readable & ~remembered & (k <= q.mT)[0])]
        if not self.cached:
            problems.append(("never reads some of what the memory keeps", remembered.any(0) & ~readable.any(0)))
        for problem, wrong in problems:
            if wrong.any():
                name = type(self).__name__
                raise ValueError(
                    f"the layer's pattern {pattern} {problem}; give it Causal() & {self.reads}, the {name}'s"
                )


class SlotUpdate(NamedTuple):
    """The slots of a memory after a chunk: `positions` of old slots and new tokens, of which `order` are kept.

    No token of the chunk reads a column before `begin`; `read` are the positions from there on.
    """

    positions: Int[Tensor, "B N"]
    begin: int
    read: Int[Tensor, "B M"]
    order: Selection
    pos: Int[Tensor, "B R"]
    now: Int[Tensor, " B"]


def slots_needed(reads: Pattern, columns: int) -> int:
    """How many of so many columns later queries read at most, wherever they stand in a row.

    By the reach: a capacity is that of rows by their length, which began before what is kept of them.
    """
    return int(min(columns, max(0, reads.reach()[0])))


def update_slots(pos: Int[Tensor, "B C"], now: Int[Tensor, " B"], ctx: Context, reads: Pattern) -> SlotUpdate:
    """Old slots and new tokens, and those of them that a later query may read under `reads` and the batch's limits.

    Found out once for all layers whose memories hold the same positions. Slots are added where a row grows longer than
    `start` was told of, and given back where a memory has been made shorter.
    """
    return ctx.memo.get(lambda: _update_slots(pos, now, ctx, reads), "moved", reads, pos, now, ctx.pos)


def _update_slots(pos: Tensor, now: Tensor, ctx: Context, reads: Pattern) -> SlotUpdate:
    positions, then = torch.cat([pos, ctx.pos.to(pos.dtype)], 1), next_positions(now, ctx.pos)
    limited, (batch, old), columns = narrow_pattern(reads, ctx.only, ctx.also), pos.shape, positions.shape[1]
    live = (positions >= 0) & limited.live(positions, then[:, None])
    # fewer than before where less is read than before; how much more a batch wants to be kept only it can tell
    slots = slots_needed(reads, columns) if ctx.also is None else columns
    if torch.compiler.is_compiling() or not batch or not old:
        return SlotUpdate(positions, 0, positions, *surviving_columns(positions, live, slots), then)
    numbers = [live.sum(1).amax()] if ctx.also is not None else []
    if columns > old + 1 and positions.device.type == "cpu":  # a look is free there, and a step of one token short
        numbers += [
            _first_column(live),
            _first_column((pos >= 0) & limited.live(pos, first_position(ctx.pos, now)[:, None])),
        ]
    integers = ctx.memo.look(*numbers) if numbers else []
    slots = slots if ctx.also is None else max(old, integers.pop(0))
    first_kept, begin = integers or (0, 0)
    if first_kept < columns - slots or not integers:
        return SlotUpdate(positions, begin, positions[:, begin:], *surviving_columns(positions, live, slots), then)
    last = slice(max(0, columns - slots), columns)  # nothing before them is wanted
    return SlotUpdate(positions, begin, positions[:, begin:], last, torch.where(live, positions, -1)[:, last], then)


def _first_column(marks: Bool[Tensor, "B N"]) -> Int[Tensor, ""]:
    """The first column that some row wants, or how many there are."""
    at = torch.arange(marks.shape[1] + 1, device=marks.device)
    return torch.where(F.pad(marks.any(0), (0, 1), value=True), at, len(at)).amin()


def join_columns(old: Float[Tensor, "B C D"], new: Float[Tensor, "B T D"], at: Selection) -> Float[Tensor, "B N D"]:
    """Old states and new ones side by side, those of some columns."""
    if not isinstance(at, slice):
        return cut(torch.cat([old, new], 1), at, 1)
    return torch.cat([old[:, at.start :], new[:, max(0, at.start - old.shape[1]) :]], 1)


def is_of_own_segment(source_pos: Int[Tensor, "B S"], ctx: Context, length: int) -> Bool[Tensor, "B S"]:
    """Which states lie in the segment that a row's tokens are in: all others are read without gradients."""

    def find() -> Tensor:
        if not ctx.pos.shape[1]:
            return torch.zeros_like(source_pos, dtype=torch.bool)
        return source_pos // length == (ctx.pos.amax(1) // length)[:, None]

    return ctx.memo.get(find, "own segment", source_pos, ctx.pos, length)
