"""IdentityMap: x + relu(f(norm(x))), the order of TrXL-I."""

from jaxtyping import Float
from torch import Tensor

from kinformer.nn.blocks.gate import Gate


class IdentityMap(Gate):
    """g(x, y) = x + y: identity map reordering. From the first layer to the last the stream passes no norm.

    Choose it over `PreNormJoin`, which has no ReLU, to repeat TrXL-I. Choose it over a gate if weights and time are
    scarce: it has no weights. Of the paper's gates only `GRUGate` and `OutputGate` did better (117.6 and 112.8 against
    107.0 on DMLab-30, where a human has 100; TrXL, whose norm stands behind the sum, has 5.0).

    dropout: the share of y that training drops.

    Errors: ValueError for a dropout that is no share. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.1.
    """

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return x + y


EXAMPLES = (lambda: IdentityMap(),)
