"""MaxPooler: the elementwise maximum of a row's vectors."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pooler import Pooler


class MaxPooler(Pooler):
    """Elementwise maximum of a row's vectors; 0 for an empty row. Choose it if one token decides."""

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        if not y.shape[1]:
            return y.sum(1)
        maximum = y.masked_fill(~real[..., None], -torch.inf).amax(1)
        return maximum.where(real.any(1, keepdim=True), 0.0)


EXAMPLES = (MaxPooler,)
