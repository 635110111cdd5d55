"""IdentityMap: x + relu(f(norm(x))), the order of norm and sum in TrXL-I."""

from jaxtyping import Float
from torch import Tensor

from kinformer.nn.blocks.gate import Gate


class IdentityMap(Gate):
    """The join of TrXL-I (identity map reordering): no norm applies to the residual stream x.

    g(x, y) = x + y with y = dropout(relu(f(norm(x))))

    Here f is the sublayer. Choose it over `PreNormJoin`, which has no ReLU, to repeat TrXL-I. Choose it over a gate if
    weights and time are scarce: it has no weights. Only `GRUGate` and `OutputGate` scored higher in the paper: 117.6
    and 112.8 against 107.0 on DMLab-30 (a human has 100). TrXL, with its norm after the sum, scored 5.0.

    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a dropout outside 0 to 1. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.1.
    """

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return x + y


EXAMPLES = (lambda: IdentityMap(),)
