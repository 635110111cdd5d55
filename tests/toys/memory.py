"""Recent: the layer inputs of the last tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.memory import Memory
from kinformer.core.pattern import narrowed
from kinformer.core.state import survivors
from kinformer.patterns.band import Band


class Kept(NamedTuple):
    """Layer inputs and their positions; -1 marks an empty slot. `now` is each row's next position."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]


class Recent(Memory):
    """Training reads `n` tokens back, across the ends of chunks. Give the mechanism `Causal() & Band(n)`."""

    kind = Kept

    def __init__(self, n: int):
        super().__init__()
        self.pattern = Band(n)

    def start(self, batch: int, length: int, width: int, *, dtype: Any = None, device: Any = None) -> Kept:
        n = self.pattern.capacity(length)
        x = torch.zeros(batch, n, width, dtype=dtype, device=device)
        now = torch.zeros(batch, dtype=torch.long, device=device)
        return Kept(x, torch.full((batch, n), -1, device=device), now)

    def forward(
        self, x: Float[Tensor, "B T D"], state: Kept, ctx: Context, read: Callable
    ) -> tuple[Tensor, Tensor, Kept, dict[str, Tensor]]:
        source, pos = torch.cat([state.x, x], 1), torch.cat([state.pos, ctx.pos], 1)
        now = torch.maximum(state.now, ctx.pos.amax(1) + 1) if x.shape[1] else state.now
        order, kept = survivors(pos, now, narrowed(self.pattern, ctx.only, ctx.also), state.pos.shape[1])
        rest = source.take_along_dim(order[..., None], 1)
        return source, pos, Kept(rest, kept.take_along_dim(order, 1), now), {}


EXAMPLES = (lambda: Recent(3),)
