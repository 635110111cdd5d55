"""GlobalEnds: a wrapper that makes the tokens of the last block of every row global."""

from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.nn.patterns.tail import Tail


class GlobalEnds(Layer):
    """A wrapper with a global last block in each row: its tokens read all tokens, and all read them.

    Choose it beside `Tokens(block) | Rows(block)`, which does the same for the first block. Together they are the two
    global blocks of BigBird's internal construction. A pattern does not know the end of a row, so the wrapper passes it
    for each batch (`ctx.also`).

    layer: the layer; its queries read its own pattern and the last block.
    block: number of positions in a block. Blocks are counted from position 0, so the last one may be short.
    full_up_to: all tokens of rows of at most this many tokens are global; 0 for none.

    Errors: NoState from `start`, since it cannot decode. Source: Zaheer et al., 2020, arXiv:2007.14062, section 2.
    """

    def __init__(self, layer: Layer, block: int, full_up_to: int = 0):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as Stack([PostNorm(Attention(...), MLP(d))])")
        self.d, self.block = layer.d, check_at_least("block", block, 1)
        self.full_up_to = check_at_least("full_up_to", full_up_to, 0)
        self.wants, self.sends = layer.wants, layer.sends

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "GlobalEnds has no decoding state: the end of a row is known only from the whole row. Use a causal layer"
        )

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        last = F.pad(ctx.pos, (0, 1), value=-1).amax(1, keepdim=True)  # [B 1]
        ends = Tail(torch.where(last < self.full_up_to, 0, last // self.block * self.block))
        return self.layer(x, None, ctx.replace(also=ends if ctx.also is None else ctx.also | ends, remember=False))


def _stack() -> kf.Stack:
    return kf.Stack([kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Block(3)))) for _ in range(2)])


EXAMPLES = (lambda: GlobalEnds(_stack(), 3), lambda: GlobalEnds(_stack(), 3, full_up_to=8))
