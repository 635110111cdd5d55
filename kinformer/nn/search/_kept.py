"""Kept: the nearest vectors of queries, of those that rounded scores, coming block by block, do not rule out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.search import Found
from kinformer.nn.search._pairs import Pairs, ordered

SPARE = 1 << 10  # vectors of a query for which there is room beyond three times those that are wanted
INF = numpy.inf


def room_for(k: int) -> int:
    """How many vectors of a query are held at most, where k are wanted."""
    return 3 * k + SPARE


class Limits:
    """How far the k nearest of each query are at most, and what scores of vectors that are no further are below.

    far: squared distances within which k vectors lie, or are guessed to lie; inf for any.
    base: a vector whose score is more than half of a query's limit, less its base, is further than that limit.
    """

    def __init__(self, far: Float[Tensor, " N"], base: Float[Tensor, " N"]):
        self.far, self.base = far, base
        below = (far / 2 - base).float().numpy()[:, None]
        self.below: numpy.ndarray = numpy.nextafter(below, below.dtype.type(INF))

    def lowered(self, far: Float[Tensor, " N"]) -> "Limits":
        """What holds where k lie within these distances too."""
        return Limits(self.far.minimum(far), self.base)


class Left(NamedTuple):
    """Pairs of queries and some vectors, `first` of all of them first: which are not ruled out, row by row.

    Those of query n stand from ends[n] to ends[n + 1] of `columns`, which say which of the vectors it is.
    """

    ends: numpy.ndarray
    columns: numpy.ndarray
    vectors: Float[Tensor, "S D"]
    first: int


class Nearest:
    """For each query the vectors that may be the k nearest: their scores, in no order, and their places.

    Those whose scores are within the limit are put behind what is there. Where there is no room for them, the k nearest
    of what is there set a limit from then on, and are kept alone.
    """

    kind: type = numpy.float32  # of scores

    def __init__(self, pairs: Pairs, k: int, limits: Limits):
        self.pairs, self.k, self.limits, self.room = pairs, k, limits, room_for(k)
        count = len(limits.far)
        self.rows = numpy.arange(count + 1)
        self.scores: numpy.ndarray = numpy.empty((count, self.room), self.kind)
        self.places = numpy.empty((count, self.room), numpy.int64)
        self.counts = numpy.zeros(count, numpy.int64)
        self.unbound = bool(limits.far.isinf().any())
        self.smaller = numpy.empty(0, bool)

    def add(self, scores: numpy.ndarray, vectors: Float[Tensor, "S D"], first: int) -> None:
        """Look at some vectors by their scores, `first` of all of them first; inf for what is never found."""
        if self.unbound:
            self._bound(scores, first)
        at = self._left(scores)
        begins = self.rows * scores.shape[1]
        ends = at.searchsorted(begins)
        counts = ends[1:] - ends[:-1]
        after = self.counts + counts
        if after.max() > self.room:
            self._narrow(scores, vectors, first)
            return
        slots = (self.rows[:-1] * self.room + after - ends[1:]).repeat(counts)
        slots += numpy.arange(slots.size)
        columns = at - begins[:-1].repeat(counts)
        self.scores.reshape(-1)[slots] = self._kept(scores, at, Left(ends, columns, vectors, first))
        columns += first
        self.places.reshape(-1)[slots] = columns
        self.counts = after

    def _kept(self, scores: numpy.ndarray, at: numpy.ndarray, left: Left) -> numpy.ndarray:
        """What is kept for those that are left in, at these places of all scores, counted through."""
        return scores.reshape(-1)[at]

    def _left(self, scores: numpy.ndarray) -> numpy.ndarray:
        """Which scores, counted through, leave a vector in; PyTorch takes five times as long."""
        if self.smaller.size < scores.size:
            self.smaller = numpy.empty(scores.size, bool)
        smaller = self.smaller[: scores.size].reshape(scores.shape)
        return numpy.flatnonzero(numpy.less(scores, self.limits.below, out=smaller))

    def _bound(self, scores: numpy.ndarray, first: int) -> None:
        """A limit by the k that score best, where these are few among all."""
        self.unbound = False
        if 2 * self.k <= scores.shape[1]:
            best = numpy.argpartition(scores, self.k - 1, axis=1)[:, : self.k]
            far = _measured(self.pairs, numpy.take_along_axis(scores, best, 1), best + first)
            self.limits = self.limits.lowered(far.amax(1))

    def _narrow(self, scores: numpy.ndarray, vectors: Float[Tensor, "S D"], first: int) -> None:
        """Make room, and look again, at half of these at a time if there may still be none."""
        self._make_room()
        half = 0 if scores.shape[1] <= self.room - self.k else scores.shape[1] // 2
        for part in (slice(half), slice(half, None)) if half else (slice(None),):
            self.add(scores[:, part], vectors[part], first + (part.start or 0))

    def _make_room(self) -> None:
        """Keep the k nearest alone."""
        best = nearest(self.pairs, self.limits.base, [self], slice(None))
        self.counts = (best.places >= 0).sum(1).numpy()
        self.scores[:, : self.k], self.places[:, : self.k] = -INF, best.places.numpy()
        self.limits = self.limits.lowered(best.distances[:, -1])


def nearest(pairs: Pairs, base: Float[Tensor, " n"], parts: Sequence[Nearest], rows: slice) -> Found:
    """The k nearest of some rows, whose pairs and base these are, of what several found for them.

    Those that score best set a limit; what else may be within it is measured too.
    """
    k = parts[0].k
    scores, places = held(parts, rows)
    if scores.shape[1] <= k:
        return ordered(_measured(pairs, scores, places), torch.from_numpy(places), k)
    best = numpy.argpartition(scores, k - 1, axis=1)[:, :k] + numpy.arange(len(scores))[:, None] * scores.shape[1]
    there = places.reshape(-1)[best]
    far = _measured(pairs, scores.reshape(-1)[best], there)
    scores.reshape(-1)[best] = INF
    left = scores < Limits(far.amax(1), base).below
    if left.any():
        others = _aligned(left, places)
        far = torch.cat([far, _measured(pairs, numpy.where(others < 0, INF, -INF), others)], 1)
        there = numpy.concatenate([there, others], 1)
    return ordered(far, torch.from_numpy(there), k)


def held(parts: Sequence[Nearest], rows: slice) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Scores and places of what several did not leave out; a score of inf, and any place, for none."""
    counts = [one.counts[rows] for one in parts]
    used = [int(each.max(initial=0)) for each in counts]
    size = len(counts[0]), sum(used)
    scores: numpy.ndarray = numpy.empty(size, parts[0].kind)
    places, end = numpy.empty(size, numpy.int64), 0
    for one, each, wide in zip(parts, counts, used, strict=True):
        own, end = slice(end, end + wide), end + wide
        scores[:, own], places[:, own] = one.scores[rows, :wide], one.places[rows, :wide]
        scores[:, own][numpy.arange(wide) >= each[:, None]] = INF
    return scores, places


def _measured(pairs: Pairs, scores: numpy.ndarray, places: numpy.ndarray) -> Float[Tensor, "N n"]:
    """Distances of what has a score below inf, inf for others."""
    real = torch.from_numpy(scores < INF)
    if bool(real.all()):
        return pairs.each(torch.from_numpy(places))
    far = torch.full(real.shape, torch.inf, dtype=torch.float64)
    far[real] = pairs.of(real.nonzero()[:, 0], torch.from_numpy(places)[real])
    return far


def _aligned(left: numpy.ndarray, places: numpy.ndarray) -> numpy.ndarray:
    """The places of each row that are left, side by side; -1 behind them."""
    counts = numpy.count_nonzero(left, axis=1)
    found = numpy.full((len(left), int(counts.max())), -1)
    found[numpy.arange(found.shape[1]) < counts[:, None]] = places[left]
    return found
