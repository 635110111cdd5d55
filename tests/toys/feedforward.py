"""Maxout: a feed-forward layer without an activation function."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State


class Maxout(Layer):
    """The larger of two linear maps, then one more. Source: Goodfellow et al., 2013, arXiv:1302.4389."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.d, self.up, self.down = d, nn.Linear(d, 2 * hidden), nn.Linear(hidden, d)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.down(self.up(x).unflatten(-1, (2, -1)).amax(-2)), state)


EXAMPLES = (lambda: Maxout(16, 24),)
