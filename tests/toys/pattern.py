"""Alternate: every other token of the past."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Alternate(Pattern):
    """Even queries read even keys of the past, odd ones odd keys. Choose it to see how little a pattern needs."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor((k <= q) & ((q - k) % 2 == 0))

    def reach(self) -> tuple[float, float]:
        return torch.inf, 0


EXAMPLES = (Alternate(),)
