"""SumPooler: one vector for a row, the sum of its tokens' vectors."""

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pooler import Pooler, sum_tokens


class SumPooler(Pooler):
    """Sum of a row's token vectors.

    Choose it if the number of tokens matters: if all tokens come twice, the sum doubles, while a mean stays the
    same.
    """

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return sum_tokens(y, real)


EXAMPLES = (SumPooler,)
