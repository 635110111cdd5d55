"""Layouts: sets of (query, key) pairs that are cheap to compute together.

Each class stands for one way in which an executor (a way to compute attention) gathers the pairs.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

INF = math.inf


class Layout:
    """Base class: a set of (query, key) pairs, all inside a window, that an executor can gather cheaply.

    An executor is a way to compute attention. The window of query i holds the keys j with i - back <= j <= i + ahead. A
    subclass may hold fewer of these pairs.

    back, ahead: the ends of the window in positions; infinite if the window has no end on that side.
    """

    back: float
    ahead: float

    def reads(self, q: Int[Tensor, "..."], k: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return True if this set contains the pair of query q and key k.

        That is every pair in the window, unless a subclass holds fewer.
        """
        distance = q - k
        return (distance <= self.back) & (distance >= -self.ahead)

    def keys_per_query(self, length: int) -> float:
        """Return the approximate number of keys per query in a row of `length` tokens.

        The fewer keys, the cheaper the layout: `intersect_layouts` compares layouts by this number.
        """
        # an infinite side counts half the row, its mean over all queries
        size = 1 + sum(length / 2 if side == INF else min(side, length) for side in (self.back, self.ahead))
        return min(length, max(0, size))

    def shift(self, n: int) -> "Layout":
        """Return the layout with each pair (q, k) moved to (q + n, k + n)."""
        return self

    def pairs(self, length: int) -> int:
        """Return the exact number of pairs of this set in a row of `length` tokens.

        Quadratic time and memory: use it in tests and drawings only.
        """
        at = torch.arange(length)
        return int(self.reads(at[:, None], at[None, :]).expand(length, length).sum())

    def narrow(self, back: float, ahead: float) -> "Layout":
        """Return the layout with its window cut to the keys i - back .. i + ahead of each query i."""
        return replace(self, back=min(self.back, back), ahead=min(self.ahead, ahead))  # type: ignore[type-var]


@dataclass(frozen=True)
class Near(Layout):
    """A layout of keys near their query, for windows of attention.

    An executor (a way to compute attention) cuts the row into chunks. The queries of a chunk meet the keys of this and
    the neighbouring chunks.

    back, ahead: the ends of the window in positions.
    """

    back: float
    ahead: float


@dataclass(frozen=True)
class Residue(Layout):
    """A layout of keys at a distance from their query that is a multiple of n, for strided attention.

    An executor (a way to compute attention) regroups the row by position mod n, so that these keys become neighbours.

    n: the number that divides the distances.
    back, ahead: the ends of the window in positions.
    """

    n: int
    back: float = INF
    ahead: float = INF

    def reads(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k) % self.n == 0) & super().reads(q, k)

    def keys_per_query(self, length: int) -> float:
        return super().keys_per_query(length) / self.n


@dataclass(frozen=True)
class GatheredKeys(Layout):
    """A layout of a few keys for every query: an executor (a way to compute attention) gathers them.

    p: the positions of the keys.
    period: if given, the positions repeat every `period` positions.
    back, ahead: the ends of the window in positions.
    """

    p: tuple[int, ...]
    period: int | None = None
    back: float = INF
    ahead: float = INF

    def reads(self, q: Tensor, k: Tensor) -> Tensor:
        return _is_among(k % self.period if self.period else k, self.p) & super().reads(q, k)

    def keys_per_query(self, length: int) -> float:
        gathered = len(self.p) * (length / self.period if self.period else 1)
        return gathered * super().keys_per_query(length) / max(length, 1)

    def shift(self, n: int) -> Layout:
        return replace(self, p=tuple((p + n) % self.period if self.period else p + n for p in self.p))


@dataclass(frozen=True)
class GatheredRows(Layout):
    """A layout of every key for a few queries: an executor (a way to compute attention) gathers these.

    p: the positions of the queries.
    back, ahead: the ends of the window in positions.
    """

    p: tuple[int, ...]
    back: float = INF
    ahead: float = INF

    def reads(self, q: Tensor, k: Tensor) -> Tensor:
        return _is_among(q, self.p) & super().reads(q, k)

    def keys_per_query(self, length: int) -> float:
        return len(self.p) * super().keys_per_query(length) / max(length, 1)

    def shift(self, n: int) -> Layout:
        return replace(self, p=tuple(p + n for p in self.p))


@dataclass(frozen=True)
class Dense(Layout):
    """A layout of every key for every query, within a window that may have no end.

    It serves every pattern, because an executor (a way to compute attention) masks the other pairs.

    back, ahead: the ends of the window in positions.
    """

    back: float = INF
    ahead: float = INF


def _is_among(x: Tensor, p: tuple[int, ...]) -> Tensor:
    among = torch.zeros_like(x, dtype=torch.bool)
    for position in p:  # torch.isin would copy p to the device at each call, and it has no batching rule for vmap
        among = among | (x == position)
    return among


def intersect_layouts(a: Layout, b: Layout, length: int) -> Layout:
    """Return a layout that contains every pair of query and key that both layouts contain.

    Two layouts of class Near or Residue are intersected exactly. Otherwise the result is the layout with fewer keys per
    query, cut to both windows.

    a, b: the layouts.
    length: the number of tokens of a row; keys per query are compared at this length.
    """
    if isinstance(a, Near | Residue) and isinstance(b, Near | Residue):
        n = math.lcm(getattr(a, "n", 1), getattr(b, "n", 1))
        back, ahead = min(a.back, b.back), min(a.ahead, b.ahead)
        return Near(back, ahead) if n == 1 else Residue(n, back, ahead)
    few, many = sorted((a, b), key=lambda layout: (isinstance(layout, Dense), layout.keys_per_query(length)))
    return few.narrow(many.back, many.ahead)
