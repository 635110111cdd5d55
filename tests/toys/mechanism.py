"""Mean: attention that weighs every token of the past alike."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism


class Sums(NamedTuple):
    """The sum of all values so far, and how many they are."""

    total: Float[Tensor, "B U V"]
    count: Int[Tensor, " B"]


class Mean(Mechanism):
    """Each query reads the mean of the values up to its own: no keys, and a state that never grows."""

    def start(self, spec: StateSpec, sizes: HeadSizes) -> Sums:
        total = torch.zeros(spec.batch, sizes.value_heads, sizes.v_dim, dtype=spec.dtype, device=spec.device)
        return Sums(total, torch.zeros(spec.batch, dtype=torch.long, device=spec.device))

    def forward(self, queries: Queries, keys: Keys | None, state: Sums | None, ctx: Context) -> Out:
        if keys is None or not keys.own:
            raise ValueError("Mean reads the past of the row that asks, not another one; use Softmax across")
        if ctx.only is not None or ctx.also is not None or not ctx.run:
            raise ValueError("Mean reads rows in order: without ctx.only and ctx.also, and with run=True")
        q, v, real = queries.q, keys.v, keys.pos[:, 0] >= 0
        total, count = torch.where(real[:, None, :, None], v, 0.0).cumsum(2), real.cumsum(1)
        if state is not None:
            total, count = total + state.total[:, :, None], count + state.count[:, None]
            state = Sums(total[:, :, -1], count[:, -1]) if v.shape[2] else state
        mean = (total / count.clamp_min(1)[:, None, :, None]).to(v.dtype)
        lse = count.to(torch.promote_types(q.dtype, torch.float32)).log()[:, None].expand(-1, q.shape[1], -1)
        return Out(AttentionOutput(mean.repeat_interleave(q.shape[1] // v.shape[1], 1), lse), state)


EXAMPLES = (Mean,)
