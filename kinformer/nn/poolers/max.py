"""MaxPooler: one vector for a row, the elementwise maximum of its tokens' vectors."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pooler import Pooler


class MaxPooler(Pooler):
    """Elementwise maximum of a row's token vectors; 0 for an empty row.

    Choose it if a single token can determine the result for the row.
    """

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        if not y.shape[1]:
            return y.sum(1)
        maximum = y.masked_fill(~real[..., None], -torch.inf).amax(1)
        return maximum.where(real.any(1, keepdim=True), 0.0)


EXAMPLES = (MaxPooler,)
