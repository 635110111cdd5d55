"""PositionedBlock: a block that adds positions to its input anew: block(x + P(pos))."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.position import Position


class PositionedBlock(Layer):
    """block(x + P(pos)): the positions stay in the stream of every block, where those added to the input alone fade.

    Choose it, with a table for each block, for deep stacks of learned positions: `PositionedBlock(block, Learned(d,
    length))`.

    block: any layer.
    position: what is added to its input.

    Errors: ValueError for what is no layer or no position. Source: Al-Rfou et al., 2018, arXiv:1808.04444, section 3.
    """

    def __init__(self, block: Layer, position: Position):
        super().__init__()
        self.block = check_part("block", block, Layer, "a layer, such as PreNorm(Attention(...), MLP(d))")
        self.position = check_part("position", position, Position, "a position, such as Learned(d)")
        self.d, self.wants, self.sends = block.d, block.wants, block.sends

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return self.block.start(batch, length, dtype=dtype, device=device)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return self.block(x + self.position(ctx.position_ids), state, ctx)


def _example() -> PositionedBlock:
    return PositionedBlock(kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal()))), kf.Sinusoidal(16))


EXAMPLES = (_example,)
