"""Causal: each query reads itself and all earlier positions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Causal(Pattern):
    """Causal attention: each query reads itself and all earlier positions.

    j <= i

    Choose it for decoders. Combine it with any other pattern: `Causal() & Band(64)`.

    Source: Vaswani et al., 2017, arXiv:1706.03762.
    """

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(k <= q)

    def reach(self) -> tuple[float, float]:
        return torch.inf, 0

    def period(self) -> int | None:
        return 1

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return k_lo <= q_hi + at, k_hi <= q_lo + at


EXAMPLES = (Causal(),)
