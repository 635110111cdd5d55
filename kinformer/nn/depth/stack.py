"""Stack: a layer that applies blocks in order."""

from collections.abc import Iterable

from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_optional_part
from kinformer.core.collected_outputs import Collected, wants_and_sends
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.residual_block import check_layers
from kinformer.core.state import share_positions


class Stack(Layer):
    """A layer that applies blocks in order.

    Values that a block passes on (`Out.up`) reach the next block in `ctx.below`.

    layers: the blocks, all of one width.
    norm: norm of the output, which pre-norm blocks need; None for none.

    Errors: ValueError if there is no layer, if a module is not a layer, or if the widths differ.
    """

    def __init__(self, layers: Iterable[Layer], norm: nn.Module | None = None):
        super().__init__()
        if not isinstance(layers, Iterable):
            raise ValueError(f"layers is of the type {type(layers).__name__}; give a list of layers, such as [layer]")
        check_layers(layers := list(layers))
        self.layers = nn.ModuleList(layers)
        widths = sorted({layer.d for layer in self.layers})
        if not widths:
            raise ValueError("layers=[] is empty. Pass at least one layer, such as PreNorm(Attention(...), MLP(d))")
        if len(widths) > 1:
            raise ValueError(f"the layers of a Stack must have the same d: got widths {widths}")
        self.d = widths[0]
        self.norm = check_optional_part("norm", norm, nn.Module, "a norm, such as LayerNorm(d)")
        self.wants, self.sends = wants_and_sends(self.layers, rising=True)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return share_positions(tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers))

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        collected = Collected(ctx.replace(remember=False) if ctx.remember else ctx, state, rising=True)
        last = len(self.layers) - 1
        for n, layer in enumerate(self.layers):
            x = (collected.remember if ctx.remember and n == last else collected.call)(n, layer, x).y
        return collected.make_out(x if self.norm is None or ctx.remember else self.norm(x))


def _example() -> Stack:
    blocks = [kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)) for _ in range(2)]
    return Stack(blocks, kf.LayerNorm(16))


def _with_spans() -> Stack:
    return Stack(
        [
            kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal(), kf.AdaptiveSpan(2, 8, ramp=3))))
            for _ in range(2)
        ]
    )


EXAMPLES = (_example, _with_spans)
