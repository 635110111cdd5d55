"""MeanPooled: fewer keys and values by the mean of each group of consecutive keys."""

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.nn.shorteners.group_shortener import GroupShortener


class MeanPooled(GroupShortener):
    """Shortener: the mean of each group of `size` consecutive keys, and of their values.

        k'_r = mean of k_j, j from r size to r size + size - 1

    Choose it over `ConvShortener` and `Linformer` for a shortener without parameters that works with any length. Choose
    it over `MaxPooled` to keep information of most tokens of a group.

    size: number of keys of a group.
    align: "first" forms groups from the row's first key on; "last" forms them backwards from its last key.

    Errors: ValueError if an argument is invalid.

    Source: Wang et al., 2020, arXiv:2006.04768, section 4 (mean pooling, kernel and stride n/k); Liu et al., 2018,
    arXiv:1801.10198, section 4.2.3, with a convolution.
    """

    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        return pieces.masked_fill(~real, 0.0).sum(3) / real.sum(3).clamp_min(1)


EXAMPLES = (lambda: MeanPooled(3), lambda: MeanPooled(2, align="last"))
