"""Block: the keys of the query's block and of blocks beside it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_whole_number
from kinformer.core.layout import Layout, Near
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Block(Pattern):
    """Local attention by blocks: each query reads its block of tokens and some blocks before and after it.

    i // size - back <= j // size <= i // size + ahead

    Choose it if all queries of a block should read the same keys. `Band` centres a window on each query instead.

    size: number of positions in a block.
    back: number of blocks before the query's block that are read; negative if the window begins after that block.
    ahead: number of blocks after the query's block that are read; negative if the window ends before that block.

    Errors: ValueError if back + ahead < 0, since such a window holds no block.
    Source: block-local attention in the survey of Lin et al., 2021, arXiv:2106.04554, section 4.1.1.
    """

    size: int
    back: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        check_at_least("Block.size", self.size, 1)
        if check_whole_number("Block.back", self.back) + check_whole_number("Block.ahead", self.ahead) < 0:
            raise ValueError(f"{self} contains no block. Make back + ahead at least 0")

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        distance = q // self.size - k // self.size
        return torch.as_tensor((distance <= self.back) & (distance >= -self.ahead))

    @property
    def layout(self) -> Layout:
        return Near(*self.reach())

    def reach(self) -> tuple[float, float]:
        return self.back * self.size + self.size - 1, self.ahead * self.size + self.size - 1

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k // self.size >= now // self.size - self.back

    def capacity(self, length: int) -> int:
        return min(length, max(0, (self.back + 1) * self.size - 1))

    def period(self) -> int | None:
        return self.size

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        q_lo, q_hi, k_lo, k_hi = ((end + at) // self.size for end in (q_lo, q_hi, k_lo, k_hi))
        any_pair = (k_hi >= q_lo - self.back) & (k_lo <= q_hi + self.ahead)
        return any_pair, (k_lo >= q_hi - self.back) & (k_hi <= q_lo + self.ahead)


EXAMPLES = (Block(4), Block(3, 1), Block(2, 1, 1))
