"""Hidden: a memory of a layer's inputs in earlier segments, as in a Transformer-XL."""

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
    """State of a `Hidden` memory: layer inputs of earlier tokens with their absolute positions.

    x: layer inputs.
    pos: position of each layer input; -1 marks an unused place.
    now: position of the next token of each row.
    """

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]


class Hidden(Memory):
    """Memory of layer inputs before each segment of `length` tokens; no gradient flows into it.

    Choose it, with a relative bias, for text that is too long to be read at once. Give the layer's mechanism the same
    set of keys, `Causal() & Segment(length, memory)`. Decoding with a cache of keys then reads exactly the keys of
    training. The pattern may also read less: `Causal() & Band(n)` with n <= memory reads the same number of keys for
    each query.

    The chunks of a row, one per call, may differ from segments. The layer cuts a chunk at the end of a segment.
    Gradients flow through a whole segment, however it was cut into chunks and whatever the other rows are.

    length: number of tokens of a segment.
    memory: number of tokens before the segment that are kept. Pass a function without arguments if the number changes
        in training, as the reach of a learned span does. The number is not saved with the weights: to change it, change
        the layer's pattern too, or build a layer with another memory and load the weights.

    Errors: ValueError if length is below 1 or memory below 0. ValueError if a layer's pattern reads more than the
    memory keeps. It is raised when the layer is built or, after a later change, when a row begins.

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2.
    """

    kind = HiddenStates

    def __init__(self, length: int, memory: int | Callable[[], int]):
        super().__init__()
        self.length, self.memory = check_at_least("length", length, 1), memory
        self.reads  # noqa: B018  (a memory below 0 is refused here)

    @property  # derived, because a memory may be set to another number
    def reads(self) -> Segment:  # type: ignore[override]
        """Pattern of the tokens that are stored: the query's segment and the memory before it."""
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
