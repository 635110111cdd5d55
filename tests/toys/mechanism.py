"""Mean: attention that weighs every token of the past alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism
from kinformer.core.read import Read


class Sums(NamedTuple):
    """The sum of all values so far, and how many they are."""

    total: Float[Tensor, "B G V"]
    count: Int[Tensor, " B"]


class Mean(Mechanism):
    """Each query reads the mean of the values up to its own: no keys, and a state that never grows."""

    def start(self, batch: int, length: int, key_heads: int, k_dim: int, v_dim: int, **kind: Any) -> Sums:
        count = torch.zeros(batch, dtype=torch.long, device=kind.get("device"))
        return Sums(torch.zeros(batch, key_heads, v_dim, **kind), count)

    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: State | None,
        ctx: Context,
        sides: Mapping[str, Tensor],
    ) -> Out:
        if ctx.only is not None or ctx.also is not None or not ctx.run:
            raise ValueError("Mean reads rows in order: without ctx.only and ctx.also, and with run=True")
        real = k_pos >= 0
        total, count = torch.where(real[:, None, :, None], v, 0.0).cumsum(2), real.cumsum(1)
        if state is not None:
            total, count = total + state.total[:, :, None], count + state.count[:, None]
            state = Sums(total[:, :, -1], count[:, -1]) if v.shape[2] else state
        mean = (total / count.clamp_min(1)[:, None, :, None]).to(v.dtype)
        lse = count.to(q.dtype).log()[:, None].expand(-1, q.shape[1], -1)
        return Out(Read(mean.repeat_interleave(q.shape[1] // v.shape[1], 1), lse), state)


EXAMPLES = (lambda: Mean(),)
