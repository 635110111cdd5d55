"""SigTanhGate: a gated update between -1 and 1, added to the unscaled residual stream."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class SigTanhGate(BiasedGate):
    """A GTrXL join that adds to the residual stream x a gated, bounded update computed only from y.

    g(x, y) = x + sigmoid(W_g y - b_g) * tanh(U_g y)

    Here y is the output of the sublayer. Choose this gate over `OutputGate` if no sublayer may add much at once: no
    feature changes by more than 1. The gate costs two matrices per sublayer. In the paper it did worse than
    `IdentityMap`, which has no matrices (101.0 against 107.0 on DMLab-30, where a human has 100).

    d: width of the residual stream.
    b_g: initial value of the d biases. With 0 the gate starts half open.
    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(d, b_g, dropout)
        self.w = nn.Linear(d, 2 * d, bias=False)  # W_g and U_g, one below the other

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        open_, change = self.w(y).chunk(2, -1)
        return x + (open_ - self.b_g).sigmoid() * change.tanh()


EXAMPLES = (lambda: SigTanhGate(16), lambda: SigTanhGate(16, b_g=0))
