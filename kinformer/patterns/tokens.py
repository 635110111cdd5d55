"""Tokens: a few keys that every query reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.layout import Keys, Layout
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Tokens(Pattern):
    """j < n, or j among a given tuple of positions: global tokens that all may read. With `Rows(n)` they also read all.

    Source: Beltagy et al., 2020, arXiv:2004.05150; 'global attention' in Lin et al., 2021, arXiv:2106.04554.
    """

    n: int | tuple[int, ...]

    @property
    def marked(self) -> tuple[int, ...]:
        return tuple(range(self.n)) if isinstance(self.n, int) else self.n

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return among(k, self.n)

    @property
    def layout(self) -> Layout:
        return Keys(self.marked)

    def reach(self) -> tuple[float, float]:
        return (torch.inf, max(self.marked)) if self.marked else (0, 0)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return among(k, self.n)

    def capacity(self, length: int) -> int:
        return min(length, len(self.marked))

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return span_of(k_lo + at, k_hi + at, self.marked)


def among(x: Index, n: int | tuple[int, ...]) -> Tensor:
    """Is x below n, or one of the positions n?"""
    if isinstance(n, int):
        return torch.as_tensor(x < n)
    found = torch.as_tensor(x < 0)
    for position in n:
        found = found | (x == position)
    return found


def span_of(lo: Tensor, hi: Tensor, marked: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Is any position of lo..hi marked, and is every one?"""
    count = torch.zeros_like(lo)
    for position in set(marked):
        count = count + ((lo <= position) & (position <= hi))
    return count > 0, count == hi - lo + 1


EXAMPLES = (Tokens(2), Tokens((0, 5)))
