"""HighwayGate: a weighted mean of the residual stream and the sublayer's output."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class HighwayGate(BiasedGate):
    """A GTrXL join that takes a weighted mean of the residual stream x and the sublayer's output y.

    g(x, y) = s * x + (1 - s) * y with s = sigmoid(W_g x + b_g)

    The other gates with a bias subtract it; here it is added because s is the weight of x. Choose this gate to keep
    each feature of the residual stream between its values in x and y. It costs one matrix per sublayer. In the paper it
    did worse than `IdentityMap`, which has no gate (90.9 against 107.0 on DMLab-30, where a human has 100).

    d: width of the residual stream.
    b_g: initial value of the d biases. With 0 the gate starts near the mean of x and y.
    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2, after
    Srivastava et al., 2015, arXiv:1505.00387.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(d, b_g, dropout)
        self.w_g = nn.Linear(d, d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        s = (self.w_g(x) + self.b_g).sigmoid()
        return s * x + (1 - s) * y


EXAMPLES = (lambda: HighwayGate(16), lambda: HighwayGate(16, b_g=0))
