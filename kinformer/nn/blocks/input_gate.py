"""InputGate: a gate on the residual stream; the sublayer's output is added unscaled."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.nn.blocks.gate import Gate


class InputGate(Gate):
    """A GTrXL join that scales the residual stream x by a gate and adds the sublayer's output y unscaled.

    g(x, y) = sigmoid(W_g x) * x + y

    Choose it only to repeat the paper's ablation, in which it had by far the lowest score of the gates (51.2 on
    DMLab-30, where a human has 100). It is the only gate without a bias. The gate starts half closed, so at first every
    sublayer halves the residual stream of the layers below.

    d: width of the residual stream.
    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a dropout outside 0 to 1. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
    """

    def __init__(self, d: int, dropout: float = 0.0):
        super().__init__(dropout)
        self.w_g = nn.Linear(check_at_least("d", d, 1), d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.w_g(x).sigmoid() * x + y


EXAMPLES = (lambda: InputGate(16),)
