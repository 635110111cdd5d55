"""Segment: the query's own segment and a memory of positions before it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layout import Layout, Near
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Segment(Pattern):
    """Segment with memory: each query reads its segment and the `memory` positions before it.

    j >= (i // length) * length - memory

    The pattern also allows all later keys. `Causal() & Segment(length, memory)` is the pattern of one Transformer-XL
    layer.

    length: number of positions in a segment.
    memory: number of positions before the segment that its queries also read.

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2.
    """

    length: int
    memory: int

    def __post_init__(self) -> None:
        check_at_least("Segment.length", self.length, 1)
        check_at_least("Segment.memory", self.memory, 0)

    def earliest_key(self, q: Index) -> Index:
        """Return the earliest position that query q reads."""
        return q // self.length * self.length - self.memory

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(k >= self.earliest_key(q))

    @property
    def layout(self) -> Layout:
        return Near(*self.reach())

    def reach(self) -> tuple[float, float]:
        return self.length - 1 + self.memory, torch.inf

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k >= self.earliest_key(now)

    def capacity(self, length: int) -> int:
        place = length % self.length  # the cache is fullest at the end of the row or of the segment before
        before = min(length - place - 1, self.length - 1 + self.memory)
        return max(min(length, place + self.memory), before)

    def period(self) -> int | None:
        return self.length

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return k_hi + at >= self.earliest_key(q_lo), k_lo + at >= self.earliest_key(q_hi)


EXAMPLES = (Segment(4, 3), Segment(3, 0))
