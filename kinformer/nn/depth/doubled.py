"""Doubled: a stream of width d through layers of two halves, which both start as it."""

from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_multiple, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State


class Doubled(Layer):
    """y = norm((y1 + y2) / 2), [y1; y2] = layer([x; x]): reversible layers for a stream of width d.

    Choose it around `Reversible` where the model is of width d: one embedding for both halves, as all published code of
    the Reformer has it, and their mean at the end, as reformer-pytorch has it. The authors' code hands both halves on
    to the head instead, side by side: that is a model of width 2d around `Reversible` alone.

    layer: what reads both halves, of width 2d.
    norm: applied to the mean.

    Errors: ValueError for a layer of odd width. Source: Kitaev et al., 2020, arXiv:2001.04451, section 3.
    """

    def __init__(self, layer: Layer, norm: nn.Module | None = None):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as Reversible([Coupled(...)])")
        self.d, self.norm = check_multiple("the layer's d", layer.d, "halves", 2) // 2, norm
        self.wants, self.sends = layer.wants, layer.sends

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return self.layer.start(batch, length, dtype=dtype, device=device)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        out = self.layer(x.repeat(1, 1, 2), state, ctx)
        if ctx.remember:
            return out._replace(y=None)
        mean = out.y.unflatten(-1, (2, -1)).mean(-2)  # [B T 2 D] to [B T D]
        return out._replace(y=mean if self.norm is None else self.norm(mean))


def _example() -> Doubled:
    block = kf.Coupled(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))
    return Doubled(kf.Reversible([block]), kf.LayerNorm(16))


EXAMPLES = (
    Example(
        _example, breaks={"compiles": "its reversible layers are computed again in the backward, which is no graph"}
    ),
)
