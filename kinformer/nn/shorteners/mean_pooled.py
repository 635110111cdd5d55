"""MeanPooled: means of a few keys in a row."""

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.nn.shorteners.group_shortener import GroupShortener


class MeanPooled(GroupShortener):
    """The mean of each `size` keys that follow one another, and of their values: no parameters, any length.

    k'_r = mean of k_j, j from r size to r size + size - 1

    Choose it over `ConvShortener` and `Linformer` to have nothing to learn and any length; over `MaxPooled` to keep
    what most of a group says.

    size: keys of a mean.
    align: groups are counted from the row's "first" key or from its "last".

    Errors: ValueError for numbers and options that are none. Source: Wang et al., 2020, arXiv:2006.04768, section 4
    (mean pooling, kernel and stride n/k); Liu et al., 2018, arXiv:1801.10198, section 4.2.3, with a convolution.
    """

    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        return pieces.masked_fill(~real, 0.0).sum(3) / real.sum(3).clamp_min(1)


EXAMPLES = (lambda: MeanPooled(3), lambda: MeanPooled(2, align="last"))
