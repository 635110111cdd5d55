"""Full: every query reads every key."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Full(Pattern):
    """Full attention: every query reads every key.

    Choose it for encoders and cross-attention.

    Source: Vaswani et al., 2017, arXiv:1706.03762.
    """

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor((q >= 0) | (k >= 0))

    def period(self) -> int | None:
        return 1

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        allowed = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) >= 0
        return allowed, allowed


EXAMPLES = (Full(),)
