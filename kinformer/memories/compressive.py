"""Compressive: a memory of hidden states whose oldest are compressed instead of forgotten."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.cache import survivors
from kinformer.core.checks import a_part, at_least, multiple
from kinformer.core.example import Example
from kinformer.core.heads import Room, cut
from kinformer.core.layer import Context
from kinformer.core.loss import Penalty
from kinformer.core.memory import Memory, moved
from kinformer.losses.compression import CompressionLoss
from kinformer.patterns.segment import Segment


class Slots(NamedTuple):
    """States and their positions, -1 at empty slots."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]


class CompressiveStates(NamedTuple):
    """Layer inputs of the memory and the own segment, and the attention that each got so far; the compressed ones.

    `now` is each row's next position.
    """

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    used: Float[Tensor, "B C"]
    old: Slots
    now: Int[Tensor, " B"]


class Compression(nn.Module, ABC):
    """What makes one state of `rate` states that follow one another. `watches` says that it wants to know their use."""

    rate: int
    watches: bool = False

    @abstractmethod
    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        """The S / rate compressed states, in order; x is 0 where pos is -1. `used` is the mean attention each got."""


class Compressive(Memory):
    """Segments of `length` tokens, the layer inputs before each, and compressed states made of older ones.

    Choose it where a Transformer-XL's memory is too short: with a compression of rate c a layer reads length + memory +
    c compressed tokens back, at the price of length + memory + compressed. At a segment's end what leaves the memory is
    compressed. Give the mechanism `Causal() & memory.reads`: that range, in whole segments. A compressed state stands
    at the position of the first token in it: it comes before the memory, stays where it is, and limits of a batch
    (documents, episode starts) hold for all that it was made of. A relative bias so sees distances in tokens, where the
    paper counts slots. Decoding compresses too, so the state is this one in both modes.

    length: tokens of a segment, a multiple of the rate.
    memory: tokens before it that are kept as they are.
    compressed: compressed states that are kept.
    compression: what makes one state of `compression.rate`.
    loss: what trains the compression, in train mode, reported in aux under its key; no loss of a model does. A segment
        learns from what leaves the memory at its end, all of which stands before it only where memory >= length.

    Errors: ValueError where segments do not divide into blocks, for a loss with memory < length, and for `ctx.also`.
    Source: Rae et al., 2019, arXiv:1911.05507, section 3.
    """

    kind = CompressiveStates
    cached = False

    def __init__(
        self, length: int, memory: int, compressed: int, compression: Compression, loss: CompressionLoss | None = None
    ):
        super().__init__()
        rate = a_part("compression", compression, Compression, "a compression, such as MeanPool(4)").rate
        multiple("length", length, "rate", rate)
        if loss is not None and at_least("memory", memory, 0) < length:
            raise ValueError(
                f"a segment of length={length} leaves tokens of its own behind memory={memory}, on which {loss.key} "
                "cannot train the compression; make memory at least length, or leave the loss out"
            )
        self.length, self.memory, self.slots = length, memory, at_least("compressed", compressed, 0)
        # in whole segments: the slots of one segment may all be made of its last states, or all of its first
        self.older = -(-rate * compressed // length) * length
        self.near, self.reads = Segment(length, memory), Segment(length, memory + self.older)
        self.compression = compression
        self.loss = (
            None if loss is None else a_part("loss", loss, CompressionLoss, "a loss, such as AttentionReconstruction()")
        )

    def penalties(self) -> dict[str, Penalty]:
        if self.loss is None:
            return {}
        return {self.loss.key: Penalty((*self.compression.parameters(), *self.loss.parameters()))}

    def start(self, room: Room, width: int) -> CompressiveStates:
        near = self.near.capacity(room.length)

        def empty(slots: int) -> tuple[Tensor, Tensor]:
            pos = torch.full((room.batch, slots), -1, device=room.device)
            return torch.zeros(room.batch, slots, width, dtype=room.dtype, device=room.device), pos

        x, pos = empty(near)
        used = torch.zeros(pos.shape, dtype=torch.promote_types(room.dtype, torch.float32), device=room.device)
        now = torch.zeros(room.batch, dtype=torch.long, device=room.device)
        return CompressiveStates(x, pos, used, Slots(*empty(self.slots)), now)

    def forward(
        self, x: Float[Tensor, "B T D"], state: CompressiveStates, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], CompressiveStates, dict[str, Tensor]]:
        if ctx.also is not None:
            raise ValueError(
                f"a Compressive memory has compressed what ctx.also={ctx.also} would read; leave it out, or use Hidden"
            )
        plan = moved(state.pos, state.now, ctx, self.near)
        near = torch.cat([state.x, x.to(state.x.dtype)], 1)
        used = F.pad(state.used, (0, x.shape[1]))
        source = torch.cat([state.old.x.to(x.dtype), state.x.to(x.dtype), x], 1)
        pos = torch.cat([state.old.pos, plan.both], 1)
        kept = CompressiveStates(near, plan.both, used, state.old, plan.now)
        return source, pos, kept, self._aux(x, state, plan.now, ctx, read)

    def after(self, state: CompressiveStates, ctx: Context, mass: Callable[[], Tensor]) -> CompressiveStates:
        """The state with what left the memory compressed, which happens where a row has come to its segment's end."""
        x, both, used, old, now = state
        slots = both.shape[1] - ctx.pos.shape[1]
        with torch.no_grad():
            if self.compression.watches:
                used = used + mass()[:, old.pos.shape[1] :].to(used.dtype)
            if self.slots and self._something_leaves(both, now, ctx):
                first = torch.as_tensor(self.near.first(now[:, None])) - self.older
                old = self._queued(old, self._compressed(x, both, used, first, self.older, now)[1], now)
        plan = ctx.memo.get(lambda: moved(both[:, :slots], now, ctx, self.near), "kept", self.near, both, now)
        return CompressiveStates(cut(x, plan.order, 1), plan.pos, cut(used, plan.order, 1), old, now)

    def cuts(self, ctx: Context) -> list[int]:
        found = super().cuts(ctx)
        for lo, hi in pairwise([0, *found, ctx.pos.shape[1]] if found else []):
            ctx.columns(lo, hi).memo.put(True, "a piece")
        return found

    def _something_leaves(self, pos: Tensor, now: Tensor, ctx: Context) -> bool:
        """A step looks, since mostly nothing does; what is longer ends where something does, and so do its pieces."""
        if torch.compiler.is_compiling() or ctx.pos.shape[1] > 1 or ctx.memo.get(lambda: False, "a piece"):
            return True
        leaving = (pos >= 0) & (pos < self.near.first(now[:, None]))
        return bool(ctx.memo.get(lambda: ctx.memo.look(leaving.any()), "leaving", self.near, pos, now)[0])

    def _compressed(
        self, x: Tensor, pos: Tensor, used: Tensor, first: Int[Tensor, "B 1"], size: int, now: Int[Tensor, " B"]
    ) -> tuple[Slots, Slots]:
        """The states at positions first .. first + size - 1, in blocks, and what the compression makes of them."""
        average = used / (now[:, None] - pos).clamp_min(1)  # over the queries since, the state's own included
        place = torch.where((pos >= 0) & (pos >= first) & (pos < first + size), pos - first, size)
        old = Slots(_placed(x, place, size, 0), _placed(pos, place, size, -1))
        return old, self.compression(*old, _placed(average, place, size, 0))

    def _queued(self, old: Slots, new: Slots, now: Int[Tensor, " B"]) -> Slots:
        """First in, first out: the newest compressed states, as many as there are slots."""
        x, pos = torch.cat([old.x, new.x.to(old.x.dtype)], 1), torch.cat([old.pos, new.pos], 1)
        order, pos = survivors(pos, (pos >= 0) & self.reads.live(pos, now[:, None]), self.slots)
        return Slots(cut(x, order, 1), pos)

    def _aux(
        self, x: Tensor, state: CompressiveStates, now: Int[Tensor, " B"], ctx: Context, read: Callable
    ) -> dict[str, Tensor]:
        """The loss of what leaves the memory at the end of this segment: of all that stood before the segment began."""
        if self.loss is None or not self.training:
            return {}
        first = ((now - 1) // self.length * self.length)[:, None] - self.memory
        old, new = self._compressed(state.x.detach().to(x.dtype), state.pos, state.used, first, self.length, now)
        value = self.loss(x.detach(), old.x, old.pos >= 0, new.x, new.pos >= 0, read)
        return {self.loss.key: torch.where(ctx.pos >= 0, value, 0.0)}


def by_block(x: Tensor, rate: int) -> Tensor:
    """[B S ...] as blocks [B S/rate rate ...]."""
    return x.unflatten(1, (x.shape[1] // rate, rate))


def first_of_block(pos: Int[Tensor, "B S"], rate: int) -> Int[Tensor, "B N"]:
    """The first position of each block, -1 of an empty one."""
    last = torch.iinfo(pos.dtype).max
    first = by_block(pos.masked_fill(pos < 0, last), rate).amin(2)
    return first.masked_fill(first == last, -1)


def _placed(leaf: Tensor, place: Int[Tensor, "B C"], size: int, empty: int) -> Tensor:
    """Each slot's entry at its place, `empty` where none came; place `size` is thrown away."""
    index = place if leaf.dim() == 2 else place[..., None].expand_as(leaf)
    room = leaf.new_full((leaf.shape[0], size + 1, *leaf.shape[2:]), empty)
    return room.scatter(1, index, leaf)[:, :size]


def _example() -> Compressive:
    from kinformer.memories.compression import MeanPool

    return Compressive(4, 4, 2, MeanPool(2))


CUTS = (
    "a row is cut where a segment ends, so that what follows reads what was compressed there: positions are looked at"
)
EXAMPLES = (Example(_example, breaks={"compiles": CUTS}),)
