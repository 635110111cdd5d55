"""SumPooler: the sum of a row's vectors."""

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pooler import Pooler, sum_tokens


class SumPooler(Pooler):
    """Sum of a row's vectors. Choose it to count: a row repeated twice gives twice the sum."""

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return sum_tokens(y, real)


EXAMPLES = (SumPooler,)
