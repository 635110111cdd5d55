"""InputGate: the stream is scaled down, what a sublayer made of it is added whole."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.nn.blocks.gate import Gate


class InputGate(Gate):
    """g(x, y) = sigmoid(W_g x) * x + y: the one gate without a bias, half closed for the stream at the start.

    Choose it to repeat the paper's ablation, in which it was the worst gate by far (51.2 on DMLab-30, where a human has
    100): every sublayer halves what those beneath have said.

    d: the width.
    dropout: the share of y that training drops.

    Errors: ValueError for a dropout that is no share. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
    """

    def __init__(self, d: int, dropout: float = 0.0):
        super().__init__(dropout)
        self.w_g = nn.Linear(check_at_least("d", d, 1), d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.w_g(x).sigmoid() * x + y


EXAMPLES = (lambda: InputGate(16),)
