"""Compressive: a memory of hidden states whose oldest are compressed instead of forgotten."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.core.memory import Memory
from kinformer.core.state import survivors
from kinformer.losses.compression import CompressionLoss
from kinformer.memories.hidden import joined, segment_ends
from kinformer.patterns.segment import Segment

LAST = torch.iinfo(torch.int64).max


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


class Mean(Compression):
    """The mean of each block. Source: Rae et al., 2019, arXiv:1911.05507, section 3.2."""

    def __init__(self, rate: int):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        count = by_block(pos >= 0, self.rate).sum(2).clamp_min(1)
        return Slots(by_block(x, self.rate).sum(2) / count[..., None], first_of_block(pos, self.rate))


class Max(Compression):
    """The largest of each feature in each block. Source: Rae et al., 2019, arXiv:1911.05507, section 3.2."""

    def __init__(self, rate: int):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        real = by_block(pos >= 0, self.rate)[..., None]
        most = by_block(x, self.rate).masked_fill(~real, -torch.inf).amax(2)
        return Slots(torch.where(real.any(2), most, 0.0), first_of_block(pos, self.rate))


class Compressive(Memory):
    """Segments of `length` tokens, the `memory` layer inputs before each, and `compressed` states made of older ones.

    Choose it where a Transformer-XL's memory is too short: with a compression of rate c a layer reads length + memory +
    c compressed tokens back, at the price of length + memory + compressed. At a segment's end what leaves the memory is
    compressed, `compression.rate` states into one. Give the mechanism `Causal() & memory.reads`: that range, in whole
    segments. A compressed state stands at the position of the first token in it: it comes before the memory, stays
    where it is, and limits of a batch (documents, episode starts) hold for all that it was made of. A relative bias so
    sees distances in tokens, where the paper counts slots.

    No loss of the model trains the compression; `loss` does, if one is given, in train mode: aux under its key.
    Decoding compresses too, so the state is this one in both modes.

    Errors: ValueError where the segments do not divide into blocks, and for `ctx.also`. Source: Rae et al., 2019,
    arXiv:1911.05507, section 3.
    """

    kind = CompressiveStates
    cached = False

    def __init__(
        self,
        length: int,
        memory: int,
        compressed: int,
        compression: Compression,
        loss: CompressionLoss | None = None,
    ):
        super().__init__()
        rate = compression.rate
        if rate < 1 or length % rate or compressed < 0:
            raise ValueError(
                f"a segment of length={length} is compressed in blocks of rate={rate} into compressed={compressed} "
                "slots; make length a multiple of a rate of at least 1, and compressed at least 0"
            )
        # in whole segments: the slots of one segment may all be made of its last states, or all of its first
        self.reads = Segment(length, memory + -(-rate * compressed // length) * length)
        self.segment = Segment(length, memory)
        self.slots, self.compression, self.loss = compressed, compression, loss

    def start(
        self,
        batch: int,
        length: int,
        width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> CompressiveStates:
        near = self.segment.capacity(length)
        x = torch.zeros(batch, near + self.slots, width, dtype=dtype, device=device)
        pos = torch.full((batch, near + self.slots), -1, device=device)
        used = torch.zeros(batch, near, dtype=torch.promote_types(x.dtype, torch.float32), device=device)
        old = Slots(x[:, near:].clone(), pos[:, near:].clone())
        return CompressiveStates(x[:, :near], pos[:, :near], used, old, pos.new_zeros(batch))

    def forward(
        self, x: Float[Tensor, "B T D"], state: CompressiveStates, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], CompressiveStates, dict[str, Tensor]]:
        if ctx.also is not None:
            raise ValueError(
                f"a Compressive memory has compressed what ctx.also={ctx.also} would read; leave it out, or use Hidden"
            )
        source, near = joined(state.x, state.pos, state.now, x, ctx.pos, self.segment.length)
        used = torch.cat([state.used, state.used.new_zeros(ctx.pos.shape)], 1)
        after = CompressiveStates(near.x, near.pos, used, state.old, near.now)
        source, pos = torch.cat([state.old.x, source], 1), torch.cat([state.old.pos, near.pos], 1)
        return source, pos, after, self._aux(x, state, near.now, ctx, read)

    def after(self, state: CompressiveStates, mass: Callable[[], Float[Tensor, "B S"]]) -> CompressiveStates:
        """The state with what left the memory compressed, which happens where a row has come to its segment's end."""
        x, pos, used, old, now = state
        with torch.no_grad():
            if self.compression.watches:
                used = used + mass()[:, old.pos.shape[1] :].to(used.dtype)
            leaving = (pos >= 0) & (pos < self.segment.first(now[:, None]))
            if bool(leaving.any()):
                old = self._queued(old, self._compressed(x, pos, used, leaving, now)[1], now)
        order, pos = survivors(pos, now, self.segment, 0)
        x = x.take_along_dim(order[..., None], 1)
        return CompressiveStates(x, pos.take_along_dim(order, 1), used.take_along_dim(order, 1), old, now)

    def cuts(self, pos: Int[Tensor, "B T"]) -> list[int]:
        return segment_ends(pos, self.segment.length)

    def _compressed(
        self, x: Tensor, pos: Tensor, used: Tensor, leaving: Tensor, now: Int[Tensor, " B"]
    ) -> tuple[Slots, Slots]:
        """The leaving states, in blocks, and what the compression makes of them."""
        average = used / (now[:, None] - pos).clamp_min(1)  # over the queries since, the state's own included
        rate = self.compression.rate
        place, size = _places(pos, leaving, rate, -self.segment.memory % rate)
        old = Slots(_placed(x, place, size, 0), _placed(pos, place, size, -1))
        return old, self.compression(*old, _placed(average, place, size, 0))

    def _queued(self, old: Slots, new: Slots, now: Int[Tensor, " B"]) -> Slots:
        """First in, first out: the newest compressed states, as many as there are slots."""
        x, pos = torch.cat([old.x, new.x], 1), torch.cat([old.pos, new.pos], 1)
        order, pos = survivors(pos, now, self.reads, self.slots)
        order = order[:, order.shape[1] - self.slots :]
        return Slots(x.take_along_dim(order[..., None], 1), pos.take_along_dim(order, 1))

    def _aux(
        self, x: Tensor, state: CompressiveStates, now: Int[Tensor, " B"], ctx: Context, read: Callable
    ) -> dict[str, Tensor]:
        """The loss of what leaves the memory at the end of this segment: of all that stood before the segment began."""
        if self.loss is None or not self.training:
            return {}
        begin = ((now - 1) // self.segment.length * self.segment.length)[:, None]
        end = torch.as_tensor(self.segment.first(begin + self.segment.length))
        leaving = (state.pos >= 0) & (state.pos < torch.minimum(begin, end))
        value = state.used.new_zeros(ctx.pos.shape, dtype=x.dtype)
        if bool(leaving.any()):
            old, new = self._compressed(state.x.detach(), state.pos, state.used, leaving, now)
            value = self.loss(x.detach(), old.x, old.pos >= 0, new.x, new.pos >= 0, read)
        return {self.loss.key: torch.where(ctx.pos >= 0, value, 0.0)}


def by_block(x: Tensor, rate: int) -> Tensor:
    """[B S ...] as blocks [B S/rate rate ...]."""
    return x.unflatten(1, (x.shape[1] // rate, rate))


def first_of_block(pos: Int[Tensor, "B S"], rate: int) -> Int[Tensor, "B N"]:
    """The first position of each block, -1 of an empty one."""
    first = by_block(pos.masked_fill(pos < 0, LAST), rate).amin(2)
    return first.masked_fill(first == LAST, -1)


def _places(
    pos: Int[Tensor, "B C"], mark: Bool[Tensor, "B C"], rate: int, offset: int
) -> tuple[Int[Tensor, "B C"], int]:
    """Where marked states lie by position, each row from its first block on; and how many places there are.

    Blocks begin at positions that are `offset` mod rate. What is not marked goes to one place more.
    """
    first = pos.masked_fill(~mark, LAST).amin(1, keepdim=True)
    place = pos - first + (first - offset) % rate
    size = int(place.masked_fill(~mark, -1).amax()) // rate * rate + rate
    return place.masked_fill(~mark, size), size


def _placed(leaf: Tensor, place: Int[Tensor, "B C"], size: int, empty: int) -> Tensor:
    index = place if leaf.dim() == 2 else place[..., None].expand_as(leaf)
    room = leaf.new_full((leaf.shape[0], size + 1, *leaf.shape[2:]), empty)
    return room.scatter(1, index, leaf)[:, :size]


EXAMPLES = (
    lambda: Compressive(4, 4, 2, Mean(2)),
    lambda: Compressive(3, 2, 1, Max(3)),
)
