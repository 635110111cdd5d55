"""Recent: the layer inputs of the last tokens."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.heads import StateSpec, cut
from kinformer.core.layer import Context
from kinformer.core.memory import Memory, update_slots
from kinformer.core.patterns.segment import Segment


class Kept(NamedTuple):
    """Layer inputs and their positions; -1 marks an empty slot. `now` is each row's next position."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]


class Recent(Memory):
    """The own segment of `n` tokens and the one before. Give the mechanism `Causal() & Segment(n, n)`."""

    kind = Kept

    def __init__(self, n: int):
        super().__init__()
        self.length, self.reads = n, Segment(n, n)

    def start(self, spec: StateSpec, width: int) -> Kept:
        slots = self.reads.capacity(spec.length)
        x = torch.zeros(spec.batch, slots, width, dtype=spec.dtype, device=spec.device)
        now = torch.zeros(spec.batch, dtype=torch.long, device=spec.device)
        return Kept(x, torch.full((spec.batch, slots), -1, device=spec.device), now)

    def forward(
        self, x: Float[Tensor, "B T D"], state: Kept, ctx: Context, read: Callable
    ) -> tuple[Tensor, Tensor, Kept, dict[str, Tensor]]:
        tokens, plan = torch.cat([state.x, x], 1), update_slots(state.pos, state.now, ctx, self.reads)
        remembered = cut(tokens, plan.order, 1).to(state.x.dtype)
        return tokens.to(x.dtype), plan.positions, Kept(remembered, plan.pos, plan.now), {}


EXAMPLES = (lambda: Recent(3),)
