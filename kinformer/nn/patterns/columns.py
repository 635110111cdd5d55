"""Columns: keys at the end of every block, read by all queries."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layout import GatheredKeys, Layout
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Columns(Pattern):
    """Summary keys: every query reads the same few positions at the end of every block.

    block - offset - summary <= j mod block < block - offset

    Here j is the position of the key. Choose it as a part of other patterns: `Fixed` is this pattern or the query's
    block.

    block: number of positions in a block.
    summary: number of positions that are read in each block.
    offset: number of positions between these and the end of the block. Heads with different offsets read different
        parts of the block.

    Errors: ValueError if summary + offset > block.
    Source: Child et al., 2019, arXiv:1904.10509, section 4.3.
    """

    block: int
    summary: int
    offset: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("block", self.block, 1), ("summary", self.summary, 1), ("offset", self.offset, 0)):
            check_at_least(f"Columns.{name}", value, least)
        if self.summary + self.offset > self.block:
            raise ValueError(
                f"{self}: got summary + offset={self.summary + self.offset}, expected at most block={self.block}"
            )

    @property
    def first_place(self) -> int:
        return self.block - self.offset - self.summary

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        place = k % self.block
        return torch.as_tensor((place >= self.first_place) & (place < self.block - self.offset))

    @property
    def layout(self) -> Layout:
        return GatheredKeys(tuple(range(self.first_place, self.block - self.offset)), period=self.block)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return self(0, 0, now, k)

    def capacity(self, length: int) -> int:
        rest = length % self.block - self.first_place
        return length // self.block * self.summary + min(max(rest, 0), self.summary)

    def period(self) -> int | None:
        return self.block if self.summary < self.block else 1

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        # shifted so that the summary takes the first places of its block
        lo, hi = k_lo - self.first_place + at, k_hi - self.first_place + at
        place, same = (
            lo % self.block,
            torch.div(lo, self.block, rounding_mode="floor") == torch.div(hi, self.block, rounding_mode="floor"),
        )
        return (place < self.summary) | ~same, same & (hi % self.block < self.summary)


EXAMPLES = (Columns(4, 1), Columns(7, 2, 3))
