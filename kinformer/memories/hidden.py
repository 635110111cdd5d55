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
        pos = torch.cat([state.pos, ctx.pos], 1)
        now = torch.maximum(state.now, ctx.pos.amax(1) + 1) if ctx.pos.shape[1] else state.now
        # a chunk that another row's segment end has cut goes on reading its own segment with gradients
        own = state.pos // self.segment.length == ((now - 1) // self.segment.length)[:, None]
        source = torch.cat([torch.where(own[..., None], state.x, state.x.detach()), x], 1)
        order, kept = survivors(pos, now, narrowed(self.segment, ctx.only, ctx.also), state.pos.shape[1])
        x = torch.cat([state.x, x], 1).take_along_dim(order[..., None], 1)
        return source, pos, HiddenStates(x, kept.take_along_dim(order, 1), now), {}

    def cuts(self, pos: Int[Tensor, "B T"]) -> list[int]:
        segment = torch.where(pos >= 0, pos // self.segment.length, -1).cummax(1).values
        ends = (segment[:, 1:] > segment[:, :-1]) & (segment[:, :-1] >= 0)
        return (ends.any(0).nonzero().flatten() + 1).tolist()


EXAMPLES = (lambda: Hidden(4, 3), lambda: Hidden(3, 5), lambda: Hidden(2, 0))
