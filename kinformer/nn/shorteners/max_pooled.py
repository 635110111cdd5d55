"""MaxPooled: fewer keys and values by the maximum of each group of consecutive keys."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.nn.shorteners.group_shortener import GroupShortener


class MaxPooled(GroupShortener):
    """Shortener: the elementwise maximum of each group of `size` consecutive keys, and of their values.

        k'_rn = max of k_jn, j from r size to r size + size - 1

    Choose it over `MeanPooled` if one token should be able to represent its group. It has no parameters and works with
    any length.

    size: number of keys of a group.
    align: "first" forms groups from the row's first key on; "last" forms them backwards from its last key.

    Errors: ValueError if an argument is invalid.

    Source: Wang et al., 2020, arXiv:2006.04768, section 4 (max pooling, kernel and stride n/k).
    """

    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        largest = pieces.masked_fill(~real, -torch.inf).amax(3)
        return largest.masked_fill(~real.any(3), 0.0)


EXAMPLES = (lambda: MaxPooled(3),)
