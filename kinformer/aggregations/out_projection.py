"""OutProjection: heads side by side, mixed by one matrix; Concat: side by side and no more."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.aggregation import Aggregation


class OutProjection(Aggregation):
    """Heads concatenated, then one matrix to width d: what attention does unless told otherwise.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(self, heads: int, v_dim: int, d: int, *, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(heads * v_dim, d, bias=bias)

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.linear(y.transpose(1, 2).flatten(2))  # [B T H*V]


class Concat(Aggregation):
    """Heads concatenated, without a matrix: for layers whose width is heads * v_dim."""

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return y.transpose(1, 2).flatten(2)  # [B T H*V]


EXAMPLES = (lambda: OutProjection(2, 8, 16), Concat)
