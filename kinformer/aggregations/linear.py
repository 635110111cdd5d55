"""Linear: heads side by side, then one matrix; Concat: heads side by side."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.aggregation import Aggregation


class Concat(Aggregation):
    """Heads side by side, without a projection; the layer's width is heads times their width."""

    def forward(self, y: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T D"]:
        return y.transpose(1, 2).flatten(2)


class Linear(Aggregation):
    """The concatenated heads times W^O: the usual choice.

    It is the sum over heads of y_h times W^O's rows for that head.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(self, heads: int, v_dim: int, d: int, *, bias: bool = True):
        super().__init__()
        self.out = nn.Linear(heads * v_dim, d, bias=bias)

    def forward(self, y: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T D"]:
        return self.out(y.transpose(1, 2).flatten(2))


EXAMPLES = (lambda: Linear(2, 8, 16), lambda: Concat())
