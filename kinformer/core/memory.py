"""Memory: hidden states of earlier tokens that a layer keeps, so that it reads further back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.heads import Selection, StateSpec, cut
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.kv_cache import first_position, surviving_columns
from kinformer.core.layer import Context, State
from kinformer.core.pattern import Pattern, narrow_pattern, pair_mask
from kinformer.core.state import map_state
from kinformer.core.token_positions import next_positions

FAR = 4096  # distance from the start of a row at which patterns without a known reach are checked


class MemoryCost(NamedTuple):
    """The numbers of stored states that each query reads in addition to its own segment.

    length: the number of tokens in a segment.
    memory: states that are kept as they are.
    compressed: states that stand for several tokens.
    searched: stored keys that are only scored; the query attends to the few with the highest scores.
    """

    length: int
    memory: int
    compressed: int = 0
    searched: int = 0

    @property
    def pairs(self) -> int:
        """The number of scores of one segment and head: L^2 + L (memory + compressed + searched)."""
        return self.length * (self.length + self.memory + self.compressed + self.searched)


class Memory(nn.Module, KeywordHints, ABC):
    """Base class of memories: hidden states kept from chunk to chunk, which a layer projects to more keys.

    A subclass writes `start` and `forward`. A memory keeps hidden states and not keys, because keys from before the
    last update of the weights would train their projection wrongly. It detaches nothing from the autograd graph: the
    `Attention` layer reads earlier segments without gradients, wherever a row is cut. In training the memory is always
    present: a call without a state starts a fresh one.

    kind: the class of its state; it tells the `Attention` layer whether a state is a memory or a cache of keys.
    length: the number of positions in a segment.
    reads: the pattern of positions that a query can read: its own segment and the stored states before it. The layer's
        pattern must be the same set.
    cached: True if a cache of keys under that pattern holds everything the memory holds, so that decoding needs no
        memory. If False, the memory is also present in decoding and in calls without a state.
    sharp: True if `receptive_field` gives the exact range; False if it is only a bound.
    """

    kind: type
    length: int
    reads: Pattern
    cached: bool = True
    sharp: bool = True

    @property
    def gradient_stops(self) -> Pattern:
        """The pairs of a query and a token without a gradient between them: pairs of different segments.

        Tests compare the declared pairs with the real gradients.
        """
        from kinformer.core.patterns.segment import Segment

        return ~Segment(self.length, 0)

    @property
    def receptive_field(self) -> Pattern:
        """The tokens that can influence a query: more than `reads` if a stored state stands for several.

        If the memory selects the states that it keeps (by a hard choice), other tokens may influence this selection.
        """
        return self.reads

    def memory_cost(self) -> MemoryCost:
        """Return the numbers of stored states that a query reads."""
        return MemoryCost(self.length, int(self.reads.reach()[0]) - self.length + 1)

    @abstractmethod
    def start(self, spec: StateSpec, width: int) -> State:
        """Return the memory before the first token."""

    def make_state(self, spec: StateSpec, width: int, ctx: Context) -> State:
        """Return an empty memory for a call without a state; all layers share its positions."""

        def share_positions(name: str, leaf: Tensor) -> Tensor:
            if name not in ("pos", "now"):
                return leaf
            return ctx.memo.get(lambda: leaf, "fresh", name, tuple(leaf.shape), leaf.device)

        return map_state(share_positions, self.start(spec, width))

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B T D"], state: State, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], State, dict[str, Tensor]]:
        """Return the hidden states to attend to, their positions, the next memory state, and penalties.

        The argument `read(x, source, real=None)` computes the layer's own attention of x over `source`, without
        positions and with detached weights. Its `real` [B S] is True at states of the source that exist; None if all
        do.
        """

    def next_state(self, state: State, ctx: Context, received_attention: Callable[[], Float[Tensor, "B S"]]) -> State:
        """Return the memory state after the layer has computed its attention.

        `received_attention()` returns the attention that each of the S states received.
        """
        return state

    def segment_cuts(self, ctx: Context) -> list[int]:
        """Return the token indices of a chunk at which some row starts a new segment, except its first.

        The layer cuts the chunk there, so that later tokens find the finished segment in the memory. The positions are
        inspected once for all layers.
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
        """Check that this memory fits a layer's pattern and width.

        If a cache would hold the states too, the pattern may read less than the memory keeps.

        Errors: ValueError if the pattern allows a key that the memory does not keep, or never allows states that only
        the memory holds. A subclass may also raise it for states of another width.
        """
        back = int(self.reads.reach()[0])
        # a pattern with a known reach is checked near the start of a row, other patterns far from it
        first = -(-(back if pattern.reach()[0] <= back else back + FAR) // self.length) * self.length
        with torch.device("cpu"):  # a model may be built on the meta device, where masks have no values
            at = torch.arange(first + self.length)
            q, k = at[None, None, first:], at[None, None]
            readable = pair_mask(pattern, q, k, range(heads)).any(1)[0]  # [T S], for any head
            remembered = pair_mask(self.reads, q, k, range(1))[0, 0]
        problems = [("reads keys that the memory does not keep", readable & ~remembered & (k <= q.mT)[0])]
        if not self.cached:
            problems.append(("never reads some keys that the memory keeps", remembered.any(0) & ~readable.any(0)))
        for problem, wrong in problems:
            if wrong.any():
                name = type(self).__name__
                raise ValueError(
                    f"the layer's pattern {pattern} {problem}; with this {name}, use Causal() & {self.reads}"
                )


class SlotUpdate(NamedTuple):
    """The slots (places of one state each) of a memory after a chunk of tokens, from `update_slots`.

    positions: positions of the old slots and of the new tokens.
    begin: the first index in `positions` that any token of the chunk reads.
    read: the positions from index `begin` on.
    order: the indices that are kept for later chunks.
    pos: the positions of the kept slots.
    now: the position of each row's next token.
    """

    positions: Int[Tensor, "B N"]
    begin: int
    read: Int[Tensor, "B M"]
    order: Selection
    pos: Int[Tensor, "B R"]
    now: Int[Tensor, " B"]


def slots_needed(reads: Pattern, columns: int) -> int:
    """Return the number of slots that a memory needs for the states that later queries may read.

    It is the farthest distance at which `reads` allows a key, at most `columns`. `Pattern.capacity` is not used,
    because it holds only for rows that start at position 0.

    reads: the pattern of positions that a query can read.
    columns: the number of states at hand.
    """
    return int(min(columns, max(0, reads.reach()[0])))


def update_slots(pos: Int[Tensor, "B C"], now: Int[Tensor, " B"], ctx: Context, reads: Pattern) -> SlotUpdate:
    """Return the slots of a memory after a chunk: old states and new tokens that later queries may read.

    A later query reads what `reads` and the limits of this batch (`ctx.only`, `ctx.also`) allow. The result is computed
    once for all layers with the same positions. Slots are added if a row grows beyond the length given to `start`, and
    removed if a memory has been shortened.

    pos: positions of the states in the memory.
    now: the position of each row's next token, before the chunk.
    ctx: the context of the call.
    reads: the pattern of positions that a query can read.
    """
    return ctx.memo.get(lambda: _update_slots(pos, now, ctx, reads), "moved", reads, pos, now, ctx.pos)


def _update_slots(pos: Tensor, now: Tensor, ctx: Context, reads: Pattern) -> SlotUpdate:
    positions, then = torch.cat([pos, ctx.pos.to(pos.dtype)], 1), next_positions(now, ctx.pos)
    limited, (batch, old), columns = narrow_pattern(reads, ctx.only, ctx.also), pos.shape, positions.shape[1]
    live = (positions >= 0) & limited.live(positions, then[:, None])
    # without `also` the reach bounds the slots; with it, the number of live columns does
    slots = slots_needed(reads, columns) if ctx.also is None else columns
    if torch.compiler.is_compiling() or not batch or not old:
        return SlotUpdate(positions, 0, positions, *surviving_columns(positions, live, slots), then)
    numbers = [live.sum(1).amax()] if ctx.also is not None else []
    if columns > old + 1 and positions.device.type == "cpu":  # no wait on a CPU; one token gains nothing
        numbers += [
            _first_column(live),
            _first_column((pos >= 0) & limited.live(pos, first_position(ctx.pos, now)[:, None])),
        ]
    integers = ctx.memo.look(*numbers) if numbers else []
    slots = slots if ctx.also is None else max(old, integers.pop(0))
    first_kept, begin = integers or (0, 0)
    if first_kept < columns - slots or not integers:
        return SlotUpdate(positions, begin, positions[:, begin:], *surviving_columns(positions, live, slots), then)
    last = slice(max(0, columns - slots), columns)  # no column before these is needed
    return SlotUpdate(positions, begin, positions[:, begin:], last, torch.where(live, positions, -1)[:, last], then)


def _first_column(marks: Bool[Tensor, "B N"]) -> Int[Tensor, ""]:
    """Return the first column that some row marks, or the number of columns."""
    at = torch.arange(marks.shape[1] + 1, device=marks.device)
    return torch.where(F.pad(marks.any(0), (0, 1), value=True), at, len(at)).amin()


def join_columns(old: Float[Tensor, "B C D"], new: Float[Tensor, "B T D"], at: Selection) -> Float[Tensor, "B N D"]:
    """Concatenate a memory's states and a chunk's new states, and return the states at the indices `at`.

    old, new: the stored and the new states.
    at: a slice, or indices of each row.
    """
    if not isinstance(at, slice):
        return cut(torch.cat([old, new], 1), at, 1)
    return torch.cat([old[:, at.start :], new[:, max(0, at.start - old.shape[1]) :]], 1)


def is_of_own_segment(source_pos: Int[Tensor, "B S"], ctx: Context, length: int) -> Bool[Tensor, "B S"]:
    """Return True at states of the current segment of each row; others are read without gradients.

    source_pos: positions of the states.
    ctx: the context of the call.
    length: the number of positions in a segment.
    """

    def find() -> Tensor:
        if not ctx.pos.shape[1]:
            return torch.zeros_like(source_pos, dtype=torch.bool)
        return source_pos // length == (ctx.pos.amax(1) // length)[:, None]

    return ctx.memo.get(find, "own segment", source_pos, ctx.pos, length)
