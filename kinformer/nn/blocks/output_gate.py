"""OutputGate: a gate on the sublayer's output; the residual stream passes unscaled."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class OutputGate(BiasedGate):
    """A GTrXL join that scales the sublayer's output y by a gate and adds it to the residual stream x.

    g(x, y) = x + sigmoid(W_g x - b_g) * y

    With the default b_g only about 0.12 of y is added at first, and x is never scaled down. Choose it over
    `IdentityMap` (no gate) for a start nearer to the identity, at the cost of one matrix per sublayer. It had the
    second highest score in the paper (112.8 on DMLab-30, where a human has 100). `GRUGate` had the highest; it can also
    scale down x, and costs six matrices.

    d: width of the residual stream.
    b_g: initial value of the d biases. With 0 the gate starts half open.
    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(d, b_g, dropout)
        self.w_g = nn.Linear(d, d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return x + (self.w_g(x) - self.b_g).sigmoid() * y


EXAMPLES = (lambda: OutputGate(16), lambda: OutputGate(16, b_g=0))
