"""Hidden: the layer inputs of the segments before, as a Transformer-XL keeps them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.memory import Memory
from kinformer.core.pattern import narrowed
from kinformer.core.state import survivors
from kinformer.patterns.segment import Segment


class HiddenStates(NamedTuple):
    """Layer inputs and their absolute positions. `pos` -1 marks an empty slot; `now` is each row's next position."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]


class Hidden(Memory):
    """Segments of `length` tokens, each of which reads itself and, without gradients, `memory` layer inputs before it.

    Give the layer's mechanism the same set of keys, `Causal() & Segment(length, memory)`: then decoding reads exactly
    what training read. Chunks need not be segments: they are cut where one ends. Within a call, gradients flow through
    a segment as a whole, whoever else is in the batch; what a layer hands on to the next call has none.

    `Causal() & Band(n)` with n <= memory reads equally many keys everywhere instead.

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2.
    """

    kind = HiddenStates

    def __init__(self, length: int, memory: int):
        super().__init__()
        self.segment = Segment(length, memory)

    def start(
        self,
        batch: int,
        length: int,
        width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> HiddenStates:
        slots = self.segment.capacity(length)
        return HiddenStates(
            torch.zeros(batch, slots, width, dtype=dtype, device=device),
            torch.full((batch, slots), -1, device=device),
            torch.zeros(batch, dtype=torch.long, device=device),
        )

    def forward(
        self, x: Float[Tensor, "B T D"], state: HiddenStates, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], HiddenStates, dict[str, Tensor]]:
        source, both = joined(state.x, state.pos, state.now, x, ctx.pos, self.segment.length)
        order, kept = survivors(both.pos, both.now, narrowed(self.segment, ctx.only, ctx.also), state.pos.shape[1])
        x = both.x.take_along_dim(order[..., None], 1)
        return source, both.pos, HiddenStates(x, kept.take_along_dim(order, 1), both.now), {}

    def cuts(self, pos: Int[Tensor, "B T"]) -> list[int]:
        return segment_ends(pos, self.segment.length)


def joined(
    kept: Float[Tensor, "B C D"],
    kept_pos: Int[Tensor, "B C"],
    now: Int[Tensor, " B"],
    x: Float[Tensor, "B T D"],
    pos: Int[Tensor, "B T"],
    length: int,
) -> tuple[Float[Tensor, "B S D"], HiddenStates]:
    """Kept states followed by new ones: as they are read, with gradients into the own segment alone; and as they are.

    `length` is that of a segment. `now` moves behind the newest position.
    """
    now = torch.maximum(now, pos.amax(1) + 1) if pos.shape[1] else now
    # a chunk that another row's segment end has cut goes on reading its own segment with gradients
    own = kept_pos // length == ((now - 1) // length)[:, None]
    source = torch.cat([torch.where(own[..., None], kept, kept.detach()), x], 1)
    return source, HiddenStates(torch.cat([kept, x], 1), torch.cat([kept_pos, pos], 1), now)


def segment_ends(pos: Int[Tensor, "B T"], length: int) -> list[int]:
    """Columns that begin a new segment of some row that was in another one before."""
    segment = torch.where(pos >= 0, pos // length, -1).cummax(1).values
    ends = (segment[:, 1:] > segment[:, :-1]) & (segment[:, :-1] >= 0)
    return (ends.any(0).nonzero().flatten() + 1).tolist()


EXAMPLES = (lambda: Hidden(4, 3), lambda: Hidden(3, 5), lambda: Hidden(2, 0))
