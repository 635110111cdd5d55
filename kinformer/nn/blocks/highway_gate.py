"""HighwayGate: one share of the stream, the rest of what a sublayer made of it."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class HighwayGate(BiasedGate):
    """g(x, y) = s * x + (1 - s) * y with s = sigmoid(W_g x + b_g): the bias is added, as s is the stream's share.

    Choose it for a stream whose size is bounded by those of its parts at one matrix a sublayer. In the
    paper it was behind `IdentityMap`, which has no gate (90.9 on DMLab-30, where a human has 100, against 107.0).

    d: the width.
    b_g: where its d biases start. 0 is the mean of x and y.
    dropout: the share of y that training drops.

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
