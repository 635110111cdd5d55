"""Sinusoidal: sines and cosines of the position, with wavelengths from 2 pi to 10000 * 2 pi."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.position import Position

Order = Literal["interleaved", "concat"]
Frequencies = Literal["paper", "tensor2tensor"]


class Sinusoidal(Position):
    """Fixed sines and cosines of each position, 0 at padding.

    It has no parameters and no fixed length. The 2017 Transformer uses it. Pair n holds sin and cos of pos * w_n, and
    positions count from 0. The result has the module's dtype.

    d: width of a vector; if it is odd, the last number is a sine (interleaved) or 0 (concat).
    layout: order of the numbers of a vector: "interleaved" is the paper's, with pair n at 2n and 2n+1; "concat" has all
        sines, then all cosines.
    frequencies: "paper" is w_n = base^(-2n/d); "tensor2tensor" is w_n = base^(-n/(d/2 - 1)), so that the longest wave
        is exactly base times as long as the shortest. The default is "paper" with "interleaved" and "tensor2tensor"
        with "concat".
    base: ratio of the longest wavelength to the shortest.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.5.

    Differences: "concat" with "tensor2tensor" is the choice of Tensor2Tensor's checkpoints, fairseq, and Marian's own
    code. Marian's models in Hugging Face's transformers combine "concat" with "paper".
    """

    like: Tensor

    def __init__(
        self, d: int, *, layout: Order = "interleaved", frequencies: Frequencies | None = None, base: float = 10000.0
    ):
        super().__init__()
        self.d, self.layout = check_at_least("d", d, 1), check_option("layout", layout, Order)
        usual: Frequencies = "paper" if layout == "interleaved" else "tensor2tensor"
        self.frequencies = usual if frequencies is None else check_option("frequencies", frequencies, Frequencies)
        self.base = check_in_range("base", base, 1, math.inf)
        # an empty buffer that follows .to(); its dtype is the result's dtype
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        dtype = torch.promote_types(self.like.dtype, torch.float32)  # angles of far positions need the digits
        if self.frequencies == "paper":
            turns = angular(self.d, dtype, pos.device, self.base)
        else:
            n = torch.arange(-(-self.d // 2), dtype=dtype, device=pos.device)
            turns = self.base ** (-n / max(self.d // 2 - 1, 1))
        angle = pos.clamp_min(0)[..., None].to(dtype) * turns  # [B T pairs]
        waves = angle.sin(), angle.cos()
        if self.layout == "concat":
            half = self.d // 2
            vectors = F.pad(torch.cat([wave[..., :half] for wave in waves], -1), (0, self.d % 2))
        else:
            vectors = torch.stack(waves, -1).flatten(-2)[..., : self.d]
        return torch.where((pos >= 0)[..., None], vectors, 0.0).to(self.like.dtype)


def angular(d: int, dtype: torch.dtype, device: torch.device, base: float = 10000.0) -> Float[Tensor, " N"]:
    """Return the angle per position of each of the d / 2 pairs of dimensions: base^(-2n/d) for pair n.

    d: number of dimensions.
    dtype, device: dtype and device of the result.
    base: ratio of the longest wavelength to the shortest.
    """
    return base ** (-torch.arange(0, d, 2, dtype=dtype, device=device) / d)


EXAMPLES = (lambda: Sinusoidal(16), lambda: Sinusoidal(16, layout="concat"))
