"""MaxPooled: of a few keys in a row the largest numbers."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.nn.shorteners.group_shortener import GroupShortener


class MaxPooled(GroupShortener):
    """Number by number the largest of each `size` keys that follow one another, and of their values.

    k'_rn = max of k_jn, j from r size to r size + size - 1

    Choose it over `MeanPooled` where one token of a group should be able to speak for it. No parameters, any length.

    size: keys of a group.
    align: groups are counted from the row's "first" key or from its "last".

    Errors: ValueError for numbers and options that are none. Source: Wang et al., 2020, arXiv:2006.04768, section 4
    (max pooling, kernel and stride n/k).
    """

    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        largest = pieces.masked_fill(~real, -torch.inf).amax(3)
        return largest.masked_fill(~real.any(3), 0.0)


EXAMPLES = (lambda: MaxPooled(3),)
