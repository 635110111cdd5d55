"""ValueConv: what a token takes of the values beside it, whatever attention reads."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import at_least
from kinformer.core.heads import number_of_groups
from kinformer.core.read import precise


def odd(name: str, value: int) -> int:
    """A whole number of tokens, one of them in the middle."""
    if at_least(name, value, 1) % 2 == 0:
        raise ValueError(f"{name}={value} has no token in its middle; give an odd number")
    return value


class ValueConv(nn.Module):
    """(w_h * V)_i = sum over d of w_h,d v_(i + d): a convolution over positions, one kernel for each query head.

    Beside attention that goes through few landmarks it hands on single tokens, which means of many have lost. Padding
    counts as 0. It starts as PyTorch's convolutions do, as in the authors' code.

    heads: query heads of the layer.
    kernel: how many tokens it reads, itself in the middle; odd. Published models take 65, others' code 33.

    Errors: ValueError for an even kernel. Source: Xiong et al., 2021, arXiv:2102.03902.
    """

    def __init__(self, heads: int, kernel: int):
        super().__init__()
        kernel, self.heads = odd("kernel", kernel), at_least("heads", heads, 1)
        self.weight = nn.Parameter(torch.empty(heads, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))

    def forward(self, v: Float[Tensor, "B U S V"], pos: Int[Tensor, "B 1 S"]) -> Float[Tensor, "B H S V"]:
        """In float32 at least; 0 at padding."""
        real = (pos >= 0)[..., None]
        v = precise(v).masked_fill(~real, 0.0).repeat_interleave(number_of_groups(self.heads, v.shape[1]), 1)
        kernel = self.weight.to(v.dtype)[:, None, :, None]
        return F.conv2d(v, kernel, padding=(kernel.shape[2] // 2, 0), groups=self.heads) * real
