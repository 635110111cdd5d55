"""Sinusoidal: sines and cosines of the position, at wavelengths from 2 pi to 10000 times that; Timing: of steps too."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.position import Position


class Sinusoidal(Position):
    """Fixed sines and cosines of a position, 0 at padding: the 2017 Transformer's choice. No parameters, any length.

    Column pair n holds sin and cos of pos * w_n; positions count from 0. `layout` "interleaved" is the paper's:
    columns 2n and 2n+1, w_n = base^(-2n/d). "concat" is that of Tensor2Tensor and fairseq checkpoints: all sines, then
    all cosines, with w_n = base^(-n/(d/2 - 1)), so it is no mere permutation of the other. An odd d ends with a sine
    (interleaved) or a 0 (concat). The result has the dtype that the module was moved to.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.5.
    """

    like: Tensor

    def __init__(self, d: int, *, layout: Literal["interleaved", "concat"] = "interleaved", base: float = 10000.0):
        super().__init__()
        self.d, self.layout, self.base = d, layout, base
        # holds no number: it follows .to(), and the result follows it
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        dtype = torch.promote_types(self.like.dtype, torch.float32)  # angles of far positions need the digits
        angle = pos.clamp_min(0)[..., None].to(dtype) * self._frequencies(dtype, pos.device)
        waves = angle.sin(), angle.cos()
        if self.layout == "concat":
            found = F.pad(torch.cat(waves, -1), (0, self.d % 2))
        else:
            found = torch.stack(waves, -1).flatten(-2)[..., : self.d]
        return torch.where((pos >= 0)[..., None], found, 0.0).to(self.like.dtype)

    def _frequencies(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " N"]:
        if self.layout == "concat":
            half = self.d // 2
            return self.base ** (-torch.arange(half, dtype=dtype, device=device) / max(half - 1, 1))
        return self.base ** (-torch.arange(0, self.d, 2, dtype=dtype, device=device) / self.d)


class Timing(nn.Module):
    """The waves of a position and those of a step, added up: what tells the steps of a Universal Transformer apart.

    0 at padding. Positions and steps count from 0, as in Tensor2Tensor; the paper counts both from 1.
    `layout` and `base` are those of `Sinusoidal`.

    Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.1.
    """

    def __init__(self, d: int, *, layout: Literal["interleaved", "concat"] = "interleaved", base: float = 10000.0):
        super().__init__()
        self.waves = Sinusoidal(d, layout=layout, base=base)

    def forward(self, pos: Int[Tensor, "B T"], step: int) -> Float[Tensor, "B T D"]:
        return self.waves(pos) + self.waves(torch.where(pos >= 0, step, -1))


EXAMPLES = (lambda: Sinusoidal(16), lambda: Sinusoidal(16, layout="concat"))
COMPILES = True
