"""Doubled: a layer of width 2d used in a model of width d, with the input copied into both halves."""

from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_multiple, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State


class Doubled(Layer):
    """A wrapper that runs a layer of width 2d, such as a reversible stack, in a model of width d.

    y = norm((y1 + y2) / 2), [y1; y2] = layer([x; x])

    Here [x; x] is the input x written twice, and y1 and y2 are the halves of the layer's output. Choose it around
    `Reversible` if the model has width d.

    layer: the layer of width 2d.
    norm: norm of the mean of both halves; None for none.

    Errors: ValueError for a layer of odd width. Source: Kitaev et al., 2020, arXiv:2001.04451, section 3.

    Differences: all published code of the Reformer uses one embedding for both halves. The mean at the end follows
    reformer-pytorch. The authors' code concatenates both halves for the head instead; `Reversible` in a model of width
    2d does this.
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
        _example,
        breaks={
            "compiles": (
                "the backward pass computes its reversible layers again, so torch.compile finds no single graph"
            )
        },
    ),
)
