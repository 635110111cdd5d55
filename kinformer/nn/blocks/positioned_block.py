"""PositionedBlock: a block that adds positions to its own input: block(x + P(pos))."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.position import Position


class PositionedBlock(Layer):
    """A block that adds position embeddings to its own input, so that position is not lost in deep stacks.

        block(x + P(pos))

    Choose it for deep stacks with learned position embeddings, one table for each block: `PositionedBlock(block,
    Learned(d, length))`. If position embeddings are added only to the model's input, upper layers know less about
    positions.

    block: any layer.
    position: the position embedding P, added to the block's input.

    Errors: ValueError if block is no layer or position is no position. Source: Al-Rfou et al., 2018, arXiv:1808.04444,
    section 3.
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
