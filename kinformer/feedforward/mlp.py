"""MLP: two matrices and a nonlinearity; Gated: three, one of them a gate."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.layer import Context, Layer, Out, State

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The named nonlinearity; "gelu_tanh" is the approximation that GPT-2 was trained with."""
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return F.relu(x) if activation == "relu" else F.gelu(x) if activation == "gelu" else F.silu(x)


class MLP(Layer):
    """f(x W1 + b1) W2 + b2, with `hidden` units (4 d unless given).

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.3.
    """

    def __init__(
        self,
        d: int,
        hidden: int | None = None,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.d, self.activation, self.dropout = d, activation, dropout
        self.up = nn.Linear(d, hidden or 4 * d, bias=bias)
        self.down = nn.Linear(hidden or 4 * d, d, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        hidden = F.dropout(activate(self.up(x), self.activation), self.dropout, self.training)
        return Out(self.down(hidden), state)


class Gated(Layer):
    """(f(x W1) * x W3) W2: with silu the feed-forward of Llama, a little better than MLP at equal size.

    `hidden` is 8/3 d unless given.

    Source: Shazeer, 2020, arXiv:2002.05202.
    """

    def __init__(self, d: int, hidden: int | None = None, *, activation: Activation = "silu", bias: bool = False):
        super().__init__()
        hidden = hidden or round(8 * d / 3)
        self.d, self.activation = d, activation
        self.gate = nn.Linear(d, hidden, bias=bias)
        self.up = nn.Linear(d, hidden, bias=bias)
        self.down = nn.Linear(hidden, d, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.down(activate(self.gate(x), self.activation) * self.up(x)), state)


EXAMPLES = (lambda: MLP(16), lambda: MLP(16, 24, activation="relu"), lambda: Gated(16))
