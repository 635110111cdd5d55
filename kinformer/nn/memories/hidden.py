"""Hidden: the layer inputs of the segments before, as a Transformer-XL keeps them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.heads import StateSpec
from kinformer.core.layer import Context
from kinformer.core.memory import Memory, join_columns, slots_needed, update_slots
from kinformer.core.patterns.segment import Segment


class HiddenStates(NamedTuple):
    """Layer inputs and their absolute positions. `pos` -1 marks an empty slot; `now` is each row's next position."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]


class Hidden(Memory):
    """Segments of `length` tokens, each of which reads itself and, without gradients, the layer inputs before it.

    Choose it, with a relative bias, for text longer than a layer can hold. Give the mechanism the same set of keys,
    `Causal() & Segment(length, memory)`: then decoding, with a cache of keys, reads exactly what training read. Chunks
    need not be segments: they are cut where one ends, and gradients flow through a segment as a whole however it was
    cut, whoever else is in the batch. `Causal() & Band(n)` with n <= memory reads equally many keys everywhere instead.

    length: tokens of a segment.
    memory: tokens before it that are kept. It is no weight: for another number change the layer's pattern too, or build
        a layer with another memory and load the weights. A function of none where the number changes by itself, as the
        reach of a learned span does.

    Errors: ValueError for a segment without a token, for a memory below 0, and where a layer's pattern reads more than
    is kept, when the layer is built or, if one of them changed since, begins a row. Source: Dai et al., 2019,
    arXiv:1901.02860, section 3.2.
    """

    kind = HiddenStates

    def __init__(self, length: int, memory: int | Callable[[], int]):
        super().__init__()
        self.length, self.memory = check_at_least("length", length, 1), memory
        self.reads  # noqa: B018  (a memory below 0 is refused here)

    @property  # derived, because a memory may be set to another number
    def reads(self) -> Segment:  # type: ignore[override]
        """The own segment and what is kept before it."""
        return Segment(self.length, self.memory() if callable(self.memory) else self.memory)

    def start(self, spec: StateSpec, width: int) -> HiddenStates:
        slots = slots_needed(self.reads, spec.length)
        return HiddenStates(
            torch.zeros(spec.batch, slots, width, dtype=spec.dtype, device=spec.device),
            torch.full((spec.batch, slots), -1, device=spec.device),
            torch.zeros(spec.batch, dtype=torch.long, device=spec.device),
        )

    def forward(
        self, x: Float[Tensor, "B T D"], state: HiddenStates, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], HiddenStates, dict[str, Tensor]]:
        plan = update_slots(state.pos, state.now, ctx, self.reads)
        new_states = join_columns(state.x, x.to(state.x.dtype), plan.order)
        source = join_columns(state.x.to(x.dtype), x, slice(plan.begin, None))
        return source, plan.read, HiddenStates(new_states, plan.pos, plan.now), {}


EXAMPLES = (lambda: Hidden(4, 3), lambda: Hidden(3, 5), lambda: Hidden(2, 0))
