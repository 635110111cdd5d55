"""Strided: every n-th key, counted from the query."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layout import Layout, Residue
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Strided(Pattern):
    """Strided attention: each query reads the keys at multiples of `stride` from it.

    (i - j) mod stride = 0

    Choose it for data with a period of `stride`, such as the rows of an image, and `Fixed` for text. Together with a
    window it is the strided Sparse Transformer: `Causal() & (Band(stride) | Strided(stride))` if each head has both
    parts, `Causal() & Heads(Band(stride), Strided(stride))` if heads take turns.

    stride: distance between neighbouring keys, in positions.

    Source: Child et al., 2019, arXiv:1904.10509, section 4.3.

    Differences: the paper's window of l = stride holds l + 1 keys, as here. The window of the authors' code holds l
    keys, `Band(stride - 1)`.
    """

    stride: int

    def __post_init__(self) -> None:
        check_at_least("Strided.stride", self.stride, 1)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor((q - k) % self.stride == 0)

    @property
    def layout(self) -> Layout:
        return Residue(self.stride)

    def period(self) -> int | None:
        return 1

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        # the differences i - j of a block fill an interval; look for a multiple of the stride in it
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        min_distance, max_distance = q_lo - k_hi + at, q_hi - k_lo + at
        any_pair = torch.div(max_distance, self.stride, rounding_mode="floor") * self.stride >= min_distance
        return any_pair, (min_distance == max_distance) & any_pair if self.stride > 1 else any_pair


EXAMPLES = (Strided(3), Strided(1))
