"""OutProjection: concatenated heads, mixed by one matrix; Concat: concatenated heads without a matrix."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.aggregation import Aggregation
from kinformer.core.checks import check_at_least


class OutProjection(Aggregation):
    """Linear map of the concatenated heads, the default aggregation of an `Attention` layer.

    out = W (y_1, .., y_H) + b

    heads, v_dim: number of heads and the width of each.
    d: width of the result.
    bias: whether the map has a bias.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(self, heads: int, v_dim: int, d: int, *, bias: bool = True):
        super().__init__()
        width = check_at_least("heads", heads, 1) * check_at_least("v_dim", v_dim, 1)
        self.linear = nn.Linear(width, check_at_least("d", d, 1), bias=bias)

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.linear(y.transpose(1, 2).flatten(2))  # [B T H*V]


class Concat(Aggregation):
    """Concatenation of heads without a matrix, for layers of width heads * v_dim."""

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return y.transpose(1, 2).flatten(2)  # [B T H*V]


EXAMPLES = (lambda: OutProjection(2, 8, 16), Concat)
