"""ConvShortener: fewer keys and values by a learned strided convolution along the row."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.heads import Keys
from kinformer.nn.shorteners.group_shortener import Align, GroupShortener
from kinformer.nn.shorteners.length_matrices import Matrices


class ConvShortener(GroupShortener):
    """Shortener of keys and values by a strided convolution: a learned mixture of each group of `size`.

        k'_r = b + sum over a < size of W_a k_(r size + a)

    Values use the same equation. Missing keys of an incomplete group count as 0. Here k'_r is the shortened key of
    group r, made of the keys k. Choose it over `MeanPooled` if the first, second and later keys of a group should have
    different weights. Choose it over `Linformer` for rows of any length and for decoding: under `Causal()` its cache
    keeps the keys of the last group until the group is complete. Each shortened key costs size * k_dim^2
    multiplications per head, and each value size * v_dim^2, so the cost is linear in the row.

    size: kernel size and stride; 3 in the paper.
    k_dim: width of a key.
    v_dim: width of a value; k_dim by default.
    heads: number of heads of keys and of values, each with its own kernels; by default all heads share one kernel.
    tied: whether keys and values share kernels, as in the published PyTorch package.
    bias: whether there is a bias b.
    align: "first" forms groups from the row's first key on; "last" forms them backwards from its last key, as in that
        package.

    Errors: ValueError if keys have other heads or widths, or if the mechanism needs extras of keys.

    Source: Liu et al., 2018, arXiv:1801.10198, section 4.2.3 (memory-compressed attention); Wang et al., 2020,
    arXiv:2006.04768, section 4.
    """

    def __init__(
        self,
        size: int,
        k_dim: int,
        v_dim: int | None = None,
        *,
        heads: int | None = None,
        tied: bool = False,
        bias: bool = True,
        align: Align = "first",
    ):
        super().__init__(size, align)
        widths = check_at_least("k_dim", k_dim, 1), k_dim if v_dim is None else check_at_least("v_dim", v_dim, 1)
        self.weight = Matrices(heads, tied, *((size, width, width) for width in widths))
        self.bias = Matrices(heads, tied, *((width,) for width in widths)) if check_flag("bias", bias) else None
        for weight in self.parameters():  # the initial weights of torch.nn.Conv1d
            bound = (size * weight.shape[-1]) ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, keys: Keys) -> Keys:
        self.weight.check("ConvShortener", keys)
        for name, x in (("k", keys.k), ("v", keys.v)):
            if x.shape[3] != (width := self.weight.matrix(name, x).shape[-1]):
                raise ValueError(
                    f"ConvShortener was made for {name} of width {width}, but got {x.shape[3]}. Create it with "
                    f"{name}_dim={x.shape[3]}"
                )
        return super().forward(keys)

    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        y = torch.einsum("bgrsn,gsnm->bgrm", pieces.masked_fill(~real, 0.0), self.weight.matrix(name, pieces))
        return y if self.bias is None else y + self.bias.matrix(name, y)[:, None]


EXAMPLES = (lambda: ConvShortener(3, 8, heads=2), lambda: ConvShortener(2, 8, tied=True, bias=False, align="last"))
