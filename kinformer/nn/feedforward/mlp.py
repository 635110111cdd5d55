"""MLP: two matrices and a nonlinearity; GatedMLP: three matrices, one of them for a gate."""

import functools
from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_option, check_probability
from kinformer.core.layer import Context, Layer, Out, State

Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"]


FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * (1.702 * x).sigmoid(),
    "silu": F.silu,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the named nonlinearity.

    x: input of any shape.
    activation: name of the nonlinearity; "gelu_tanh" is the approximation in GPT-2's training, and "gelu_sigmoid" is
        the Sparse Transformer's.

    Errors: ValueError if the name is unknown.
    """
    return FUNCTIONS[check_option("activation", activation, FUNCTIONS)](x)


class MLP(Layer):
    """Two linear maps with a nonlinearity between them, applied to each token separately.

    y = f(x W1 + b1) W2 + b2

    The original Transformer (with relu), BERT and GPT-2 use it. `GatedMLP` has a third matrix for a gate, as in Llama.

    d: width of a token.
    hidden: number of hidden units; 4 d by default.
    activation: the nonlinearity f.
    bias: whether both matrices have a bias.
    dropout: probability of dropping a hidden unit in training.

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
        self.d, self.activation = check_at_least("d", d, 1), check_option("activation", activation, Activation)
        self.dropout = check_probability("dropout", dropout)
        hidden = 4 * d if hidden is None else check_at_least("hidden", hidden, 1)
        self.up = nn.Linear(d, hidden, bias=bias)
        self.down = nn.Linear(hidden, d, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        hidden = activate(self.up(x), self.activation)
        hidden = F.dropout(hidden, self.dropout) if self.training else hidden
        return Out(self.down(hidden), state)


class GatedMLP(Layer):
    """Feed-forward layer with a multiplicative gate; with silu it is Llama's.

    y = (f(x W1) * x W3) W2

    Choose it over `MLP` for a model like Llama. With the default `hidden` both have equally many weights except biases.

    d: width of a token.
    hidden: number of hidden units; 8/3 d by default, so that the three matrices are as large as the two of an MLP.
    activation: the nonlinearity f.
    bias: whether the matrices have a bias.

    Source: Shazeer, 2020, arXiv:2002.05202.
    """

    def __init__(self, d: int, hidden: int | None = None, *, activation: Activation = "silu", bias: bool = False):
        super().__init__()
        self.d, self.activation = check_at_least("d", d, 1), check_option("activation", activation, Activation)
        hidden = round(8 * d / 3) if hidden is None else check_at_least("hidden", hidden, 1)
        self.gate = nn.Linear(d, hidden, bias=bias)
        self.up = nn.Linear(d, hidden, bias=bias)
        self.down = nn.Linear(hidden, d, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.down(activate(self.gate(x), self.activation) * self.up(x)), state)


EXAMPLES = (lambda: MLP(16), lambda: MLP(16, 24, activation="relu"), lambda: GatedMLP(16))
