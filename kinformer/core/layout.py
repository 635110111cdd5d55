"""Layouts: sets of (query, key) pairs that are cheap to read together, named by how an executor gathers them."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

INF = math.inf


class Layout:
    """A set of pairs, given by what is gathered and a window: key j is within [i - back, i + ahead] of query i."""

    back: float
    ahead: float

    def reads(self, q: Int[Tensor, "..."], k: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Does an executor of this layout touch the pair (q, k)? The window alone, unless less is gathered."""
        distance = q - k
        return (distance <= self.back) & (distance >= -self.ahead)

    def keys_per_query(self, length: int) -> float:
        """About how many keys one query of a row of `length` tokens touches: the cost by which parts choose."""
        # a side without an end counts half the row: the mean over all queries
        size = 1 + sum(length / 2 if side == INF else min(side, length) for side in (self.back, self.ahead))
        return min(length, max(0, size))

    def shift(self, n: int) -> "Layout":
        """The layout of the same pairs, each query and key n positions later."""
        return self

    def pairs(self, length: int) -> int:
        """Exactly how many pairs a row of `length` tokens touches. Quadratic: for tests and drawings."""
        at = torch.arange(length)
        return int(self.reads(at[:, None], at[None, :]).expand(length, length).sum())

    def narrow(self, back: float, ahead: float) -> "Layout":
        """The same layout, its window cut to [i - back, i + ahead]."""
        return replace(self, back=min(self.back, back), ahead=min(self.ahead, ahead))  # type: ignore[type-var]


@dataclass(frozen=True)
class Near(Layout):
    """Keys near their query: chunk the row, read each chunk with its neighbours."""

    back: float
    ahead: float


@dataclass(frozen=True)
class Residue(Layout):
    """Keys at a multiple of n from their query: regroup the row by residue mod n, which makes them neighbours."""

    n: int
    back: float = INF
    ahead: float = INF

    def reads(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k) % self.n == 0) & super().reads(q, k)

    def keys_per_query(self, length: int) -> float:
        return super().keys_per_query(length) / self.n


@dataclass(frozen=True)
class GatheredKeys(Layout):
    """A few keys for every query: gather positions p, repeated every `period` positions where a period is given."""

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
    """Every key for a few queries: gather the queries at positions p."""

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
    """Every key for every query, within a window that may be endless; exact for every pattern, block by block."""

    back: float = INF
    ahead: float = INF


def _is_among(x: Tensor, p: tuple[int, ...]) -> Tensor:
    among = torch.zeros_like(x, dtype=torch.bool)
    for position in p:  # torch.isin copies them to a device at each call, and has no batch under vmap
        among = among | (x == position)
    return among


def intersect_layouts(a: Layout, b: Layout, length: int) -> Layout:
    """A layout that holds every pair of both.

    Windows and residues intersect; otherwise the one with fewer keys per query, in both windows.
    """
    if isinstance(a, Near | Residue) and isinstance(b, Near | Residue):
        n = math.lcm(getattr(a, "n", 1), getattr(b, "n", 1))
        back, ahead = min(a.back, b.back), min(a.ahead, b.ahead)
        return Near(back, ahead) if n == 1 else Residue(n, back, ahead)
    few, many = sorted((a, b), key=lambda layout: (isinstance(layout, Dense), layout.keys_per_query(length)))
    return few.narrow(many.back, many.ahead)
