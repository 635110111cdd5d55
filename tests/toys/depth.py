"""Repeat: one layer, several times."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.collected_outputs import Collected
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State


class Repeat(Layer):
    """The same layer `times` times, with a state for each time: depth without more parameters."""

    def __init__(self, layer: Layer, times: int):
        super().__init__()
        self.d, self.layer, self.times = layer.d, layer, times

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return tuple(self.layer.start(batch, length, dtype=dtype, device=device) for _ in range(self.times))

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        collected = Collected(ctx.replace(remember=False) if ctx.remember else ctx, state, rising=True)
        for n in range(self.times):
            x = collected.call(n, self.layer, x).y
        return collected.make_out(x)


def _example() -> Repeat:
    from kinformer.core.patterns.causal import Causal
    from kinformer.nn.attention import Attention
    from kinformer.nn.blocks.pre_norm import PreNorm
    from kinformer.nn.mechanisms.softmax import Softmax
    from kinformer.nn.projections.qkv import QKV

    return Repeat(PreNorm(Attention(QKV(16, 2), Softmax(Causal()))), 3)


EXAMPLES = (Example(_example, shares={"layer": "the same layer is every step of the depth"}),)
