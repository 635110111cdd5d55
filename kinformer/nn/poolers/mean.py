"""MeanPooler: one vector for a row, the mean of its tokens' vectors."""

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pooler import Pooler, sum_tokens


class MeanPooler(Pooler):
    """Mean of a row's token vectors.

    Choose it to train from scratch, because every token contributes from the first training step on.
    """

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return sum_tokens(y, real) / real.sum(1, keepdim=True).clamp_min(1)


EXAMPLES = (MeanPooler,)
