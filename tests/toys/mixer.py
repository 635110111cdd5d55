"""Average: a token mixer that is no attention."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, make_state_spec


class Sum(NamedTuple):
    """The sum of the row so far, and how many tokens it has."""

    total: Float[Tensor, "B D"]
    count: Int[Tensor, " B"]


class Average(Layer):
    """Average attention: each token sees the mean of all up to its own, through a gate. Source: Zhang et al., 2018,
    arXiv:1805.00631."""

    def __init__(self, d: int):
        super().__init__()
        self.d, self.gate = d, nn.Linear(2 * d, d)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> Sum:
        new = make_state_spec(self, batch, length, dtype, device)
        count = torch.zeros(batch, dtype=torch.long, device=new.device)
        return Sum(torch.zeros(batch, self.d, dtype=new.dtype, device=new.device), count)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        if ctx.only is not None or ctx.also is not None:
            raise ValueError("Average adds up a whole row and cannot honour ctx.only or ctx.also; use Attention")
        real = ctx.pos >= 0
        total, count = torch.where(real[..., None], x, 0.0).cumsum(1), real.cumsum(1)
        if state is not None:
            total, count = total + state.total[:, None], count + state.count[:, None]
            state = Sum(total[:, -1], count[:, -1]) if x.shape[1] else state
        mean = (total / count.clamp_min(1)[..., None]).to(x.dtype)
        gate = torch.sigmoid(self.gate(torch.cat([x, mean], -1)))
        return Out(gate * x + (1 - gate) * mean, state)


EXAMPLES = (lambda: Average(16),)
