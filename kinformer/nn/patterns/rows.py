"""Rows: a few queries that read every key."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.layout import GatheredRows, Layout
from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.tokens import check_token_positions, is_any_of, marked_positions, some_or_every


@dataclass(frozen=True)
class Rows(Pattern):
    """Global queries: the first n queries, or queries at given positions, read every key.

    i < n, or i is in n

    Choose it with `Tokens` for global tokens: `Band(w) | Tokens(g) | Rows(g)` is Longformer's pattern.

    n: number of queries at the front, or a tuple of their positions.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    n: int | tuple[int, ...]

    def __post_init__(self) -> None:
        check_token_positions("Rows.n", self.n)

    @property
    def marked_positions(self) -> tuple[int, ...]:
        return marked_positions(self.n)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return is_any_of(q, self.n)

    @property
    def layout(self) -> Layout:
        return GatheredRows(self.marked_positions)

    def reach(self) -> tuple[float, float]:
        return (max(self.marked_positions), torch.inf) if self.marked_positions else (0, 0)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return (now <= max(self.marked_positions, default=-1)).expand_as(k)

    def capacity(self, length: int) -> int:
        # no key is needed after the last of these queries
        return min(length, max(self.marked_positions, default=0))

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return some_or_every(q_lo + at, q_hi + at, self.marked_positions)


EXAMPLES = (Rows(2), Rows((0, 5)))
