"""Repeat: one layer, several times."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, State, prefixed
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal


class Repeat(Layer):
    """The same layer `times` times, with a state for each time: depth without more parameters."""

    def __init__(self, layer: Layer, times: int):
        super().__init__()
        self.d, self.layer, self.times = layer.d, layer, times

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        return tuple(self.layer.start(batch, length, dtype=dtype, device=device) for _ in range(self.times))

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        states: list[State] = []
        aux: dict[str, Tensor] = {}
        for n in range(self.times):
            out = self.layer(x, None if state is None else state[n], ctx)
            x = out.y
            states.append(out.state)
            aux |= prefixed(n, out.aux)
        return Out(x, None if state is None else tuple(states), aux)


EXAMPLES = (lambda: Repeat(PreNorm(Attention(16, 2, Softmax(Causal()))), 3),)
