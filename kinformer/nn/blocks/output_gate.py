"""OutputGate: the stream passes whole, what a sublayer made of it is scaled down."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class OutputGate(BiasedGate):
    """g(x, y) = x + sigmoid(W_g x - b_g) * y: a residual connection that begins small and never forgets.

    Choose it over `IdentityMap` for a start nearer to the identity at one matrix a sublayer; it was second in the paper
    (112.8 on DMLab-30, where a human has 100). `GRUGate`, the best, can also forget, at six.

    d: the width.
    b_g: where its d biases start. 0 is a gate half open.
    dropout: the share of y that training drops.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(d, b_g, dropout)
        self.w_g = nn.Linear(d, d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return x + (self.w_g(x) - self.b_g).sigmoid() * y


EXAMPLES = (lambda: OutputGate(16), lambda: OutputGate(16, b_g=0))
