"""Exact: every vector is looked at, a block at a time, by one matrix product each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import at_least
from kinformer.core.search import BLOCK, Found, Index, Search, Vectors, spread
from kinformer.search.support.crew import Crew, Setting, crew, cut
from kinformer.search.support.kept import Nearest

QUERIES = 512  # that are looked at together
SAMPLE = 1 << 12  # vectors by which it is guessed how near the nearest are
CENTRE = 1 << 8  # vectors whose mean is taken off all of them
SOME = 16  # queries for which that is worth the reading
SLACK, SHARE = 32, 32  # candidates beyond k, and a share of k, so that rounding seldom leaves a doubt
MORE = 8  # so many times as many are looked for where it does
FEW = 1 << 12  # vectors that are multiplied at a time, and
NUMBERS, TOGETHER = 1 << 19, 1 << 15  # of a product, of how many vectors at most, are held: what a cache has room for
PAIRS = 1 << 10  # of a query and a vector whose distance is computed anew at a time
LONG = 2.0**60  # of a vector: sums of squares of what is longer may be more than float32 holds


SCALE = "multiply vectors and queries by 2^-32, say, which changes no order"


@dataclass(frozen=True)
class Exact(Search):
    """The k nearest vectors, exactly: as if all distances were computed in float64, and of equal ones the first.

    Choose it where a store is small enough to be read for each batch of queries, and wherever recall matters: it is the
    measure of every other search. |q - k|^2 = |q|^2 - 2 q.k + |k|^2 by matrix products in float32 names candidates,
    whose distances are computed again as sums of squared differences in float64; the mean of some vectors is taken off
    all of them before, as states of a model lie close together and far from 0. Where a bound on the rounding of the
    product leaves it in doubt whether others are as near (many equal vectors), all that may be are computed so. Beside
    the vectors 4 bytes of each are held. Vectors with NaN or infinity are never found. A search is shared
    among PyTorch's threads, and takes two to three times as long as a bare product of all queries and vectors
    (`bench/README.md`); a single query of vectors in float16 three to five times, and where k is a hundredth of the
    store five to nine times, for the distances in float64.

    Errors: ValueError for queries of another width, for queries with NaN or infinity, and for queries or vectors longer
    than 2^60, as float32 holds no sums of their squares.
    """

    def index(self, vectors: Vectors) -> "Blocks":
        with torch.device("cpu"):  # where vectors lie, also where a model is built without numbers
            return Blocks(vectors)

    def products(self, width: int) -> None:
        return None


class _Block(NamedTuple):
    """Some vectors, the number of the first, and half of their squared lengths."""

    first: int
    vectors: Float[Tensor, "S D"]
    lengths: Float[Tensor, " S"]

    def halves(self, queries: Float[Tensor, "N D"], out: Float[Tensor, "N S"] | None = None) -> Float[Tensor, "N S"]:
        """|k|^2 / 2 - q.k: half of the distance, without what is the same for all vectors; in `out`, if it is there."""
        return torch.addmm(self.lengths[None], queries, self.vectors.T, alpha=-1, out=out)


# products of float32 in float32, also where a program has allowed for less
PRECISELY = Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest")


class Blocks(Index):
    """Vectors that are all looked at for each batch of queries; their squared lengths are kept once they are known."""

    @torch.inference_mode(False)  # what is kept is written to by searches outside of it, and by other threads
    @torch.no_grad()
    def __init__(self, vectors: Vectors):
        self.vectors = vectors
        self.centre = _centre(vectors)
        self.away = float(self.centre.double().square().sum().sqrt())
        self.lengths = torch.full((vectors.count,), torch.nan)  # half of their squares, off the centre; not yet known
        self.longest: float | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # or products would be rounded further than the bound allows for
    def search(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        queries, k = asked(queries, self.vectors), min(at_least("k", k, 1), self.vectors.count)
        with PRECISELY.held(), crew(min(torch.get_num_threads(), -(-self.vectors.count // BLOCK))) as by:
            found = [self._some(some, k, by) for some in queries.split(QUERIES)]
        return Found(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def blocks(self, size: int, begin: int = 0, end: int | None = None, *, lying: bool = False) -> Iterator[_Block]:
        """Vectors in float32, off their centre or as they lie, with half of their squared lengths off it.

        The lengths are inf for vectors with NaN and infinity.
        """
        room = torch.empty(0, self.vectors.width)  # asking the system for it each time takes longer than to fill it
        for first, vectors in self.vectors.blocks(size, begin, end):
            if not lying or vectors.dtype != torch.float32:
                room = room if len(vectors) <= len(room) else torch.empty(vectors.shape)
                vectors = room[: len(vectors)].copy_(vectors)
            lengths = self.lengths[first : first + len(vectors)]
            if not lying:
                vectors.sub_(self.centre)
                if bool(lengths.isnan().any()):
                    lengths.copy_(_half_squares(vectors, torch.arange(first, first + len(vectors))))
            if bool(lengths.isinf().any()):  # 0 times infinity would be no number
                vectors = vectors.masked_fill(lengths[:, None].isinf(), 0.0)
            yield _Block(first, vectors, lengths)

    def _some(self, queries: Float[Tensor, "N D"], k: int, by: Crew, more: int = 1) -> Found:
        wide = min(k + more * (SLACK + k // SHARE), self.vectors.count)
        # then hardly more is rounded off, and no vector need be changed
        lying = more == 1 and self.longest is not None and self.away <= self.longest
        away = queries - self.centre
        half, places = self._candidates(away, self._guess(away, wide, by), wide, by, lying)
        found = nearest_of(self.vectors, queries, places, k, by)
        if wide == self.vectors.count or not len(queries):
            return found
        rows, limits = self._doubts(away, found, half[:, -1], lying)
        if len(rows):
            again = queries[rows]
            best = self._some(again, k, by, MORE) if more == 1 else self._all_as_near(again, limits, k)
            found.distances[rows], found.places[rows] = best
        return found

    def _candidates(
        self, queries: Float[Tensor, "N D"], bounds: Float[Tensor, " N"], wide: int, by: Crew, lying: bool
    ) -> tuple[Float[Tensor, "N w"], Int[Tensor, "N w"]]:
        """Half distances of the nearest, as products round them, in order, and which vectors these are."""
        size = min(TOGETHER, max(NUMBERS // max(len(queries), 1), 1))
        shift = (queries.double() @ self.centre.double())[:, None] * lying  # of products with vectors as they lie
        nearer = (bounds - shift[:, 0]).float()

        def part(ends: tuple[int, int]) -> Nearest:
            near, room, begin = Nearest(nearer, wide), torch.empty(len(queries), size), ends[0]
            for block in self.blocks(min(size, FEW), *ends, lying=lying):
                at, last = block.first - begin, block.first - begin + len(block.vectors)
                if last > size:
                    near.add(room[:, :at], begin)
                    begin, at, last = block.first, 0, len(block.vectors)
                block.halves(queries, room[:, at:last])
                if begin + last == ends[1]:
                    near.add(room[:, :last], begin)
            return near

        near = Nearest.joined(by.work(part, cut(self.vectors.count, by.count)))
        half, places = near.settled()
        half = half.double() + shift
        short = near.short()
        if len(short) and bool(bounds.isfinite().any()):
            again = self._candidates(queries[short], _anything(len(short)), wide, by, lying)
            half[short], places[short] = again
        return half, places

    def _guess(self, queries: Float[Tensor, "N D"], wide: int, by: Crew) -> Float[Tensor, " N"]:
        """Half distances within which a little more than `wide` vectors should be, by some from all over; inf for none.

        Most of what is further is left out by one comparison, where many are wanted too.
        """
        at = spread(self.vectors.count, SAMPLE)
        share = wide * len(at) / max(self.vectors.count, 1)
        rank = math.ceil(share + 3 * share**0.5 + 3)  # so that hardly ever too few are nearer
        if len(queries) < SOME or rank > len(at) // 2:
            return _anything(len(queries))
        some = self.vectors.at(at).float() - self.centre
        half = _half_squares(some, at)
        sample = _Block(0, some.masked_fill(half[:, None].isinf(), 0.0), half)

        def part(ends: tuple[int, int]) -> Float[Tensor, " n"]:
            halves = sample.halves(queries[slice(*ends)]).numpy()
            return torch.from_numpy(numpy.partition(halves, rank - 1, axis=1)[:, rank - 1].copy())

        return torch.cat(by.work(part, cut(len(queries), by.count)))

    def _doubts(
        self, away: Float[Tensor, "N D"], found: Found, furthest: Float[Tensor, " N"], lying: bool
    ) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """Rows where something that was left out may be as near as the last that was found, and how near it may be."""
        own, error = away.double().square().sum(1), self._error(away, lying)
        last = found.distances[:, -1]
        rows = (~(last < 2 * furthest + own - 2 * error)).nonzero()[:, 0]
        return rows, ((last - own) / 2 + error)[rows]

    def _error(self, queries: Float[Tensor, "N D"], lying: bool) -> Float[Tensor, " N"]:
        """No half distance of a query is further than this from what it would be without rounding.

        Of n products that are added in any order no more than n u of what their sizes come to is lost, u being half of
        eps; taking off the centre, the length and the difference lose some more. |q||k| + |k|^2 / 2 is at most half of
        (|q| + |k|)^2, and |q| times the centre's length is what vectors as they lie may add.
        """
        if self.longest is None:  # of all, as by now all were looked at
            self.longest = float(self.lengths.where(self.lengths.isfinite(), 0).amax().double().mul(2).sqrt())
        own = queries.double().square().sum(1).sqrt()
        size = (self.vectors.width + 16) * torch.finfo(queries.dtype).eps / 4
        return size * ((own + self.longest) ** 2 + 2 * own * self.away * lying)

    def _all_as_near(self, queries: Float[Tensor, "N D"], limits: Float[Tensor, " N"], k: int) -> Found:
        """The k nearest of all vectors that may be as near as a query's limit, by distances in float64."""
        away = queries - self.centre
        best = [(limits.new_full((k,), torch.inf), torch.full((k,), -1)) for _ in limits]
        for block in self.blocks(BLOCK):
            near = (block.halves(away) <= limits[:, None]) & block.lengths.isfinite()
            for row in near.any(1).nonzero()[:, 0].tolist():
                few = near[row].nonzero()[:, 0] + block.first
                far = torch.cat([best[row][0], distances(queries[row], self.vectors.at(few))])
                order = far.argsort(stable=True)[:k]  # the first of equal ones stand first
                best[row] = far[order], torch.cat([best[row][1], few])[order]
        return Found(*(torch.stack(parts) for parts in zip(*best, strict=True)))


def _anything(count: int) -> Float[Tensor, " n"]:
    """Bounds that leave nothing out."""
    return torch.full((count,), torch.inf)


def _centre(vectors: Vectors) -> Float[Tensor, " D"]:
    """About where the vectors lie: the mean of some, of those that are numbers."""
    some = vectors.at(spread(vectors.count, CENTRE)).float() if vectors.count else torch.zeros(0, vectors.width)
    some = some[(some.abs() < LONG).all(1)]  # NaN is not
    return some.double().mean(0).float() if len(some) else torch.zeros(vectors.width)


def _half_squares(vectors: Float[Tensor, "S D"], places: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Half of squared lengths, inf for vectors with NaN or infinity; ValueError for vectors that are too long."""
    half = torch.linalg.vector_norm(vectors, dim=1).square_().div_(2).nan_to_num_(torch.inf, torch.inf)
    if bool((half >= LONG**2 / 2).any()):
        long = (half >= LONG**2 / 2) & vectors.isfinite().all(1)
        if bool(long.any()):
            place = int(places[long][0])
            raise ValueError(f"vector {place} is longer than 2^60, and float32 holds no sum of such squares; {SCALE}")
    return half


def asked(queries: Float[Tensor, "N D"], vectors: Vectors) -> Float[Tensor, "N D"]:
    """Queries as a search takes them, in float32; ValueError for what cannot be asked."""
    if queries.dim() != 2 or queries.shape[1] != vectors.width:
        raise ValueError(
            f"queries of shape {list(queries.shape)} came; give [N, {vectors.width}], the width of the keys"
        )
    queries = queries.detach().cpu().float()
    if not bool(queries.isfinite().all()):
        raise ValueError("a query holds NaN or infinity, which is near to nothing; give finite numbers")
    if len(queries) and float(queries.abs().amax()) * queries.shape[1] ** 0.5 >= LONG:
        raise ValueError(f"a query is longer than 2^60, and float32 holds no sum of such squares; {SCALE}")
    return queries


def distances(queries: Float[Tensor, "*n D"], vectors: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """Sums of squared differences in float64."""
    away = (vectors.double() - queries).numpy()
    return torch.from_numpy(numpy.vecdot(away, away))


def nearest_of(
    vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int, by: Crew | None = None
) -> Found:
    """The k nearest of some candidates of each query, -1 being none, by distances in float64; equal ones in order."""
    by = by or Crew()

    def part(ends: tuple[int, int]) -> Found:
        return _nearest_of(vectors, queries[slice(*ends)], places[slice(*ends)], k)

    return Found(*map(torch.cat, zip(*by.work(part, cut(len(queries), by.count)), strict=True)))


def _nearest_of(vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int) -> Found:
    # so that a stable order of distances leaves the first of equal ones first; NumPy sorts whole numbers much faster
    at, count = torch.from_numpy(numpy.sort(places.numpy(), axis=1)), max(1, places.shape[1])
    size, wide = max(1, PAIRS // count), -(-count // -(-count // PAIRS))
    far = torch.empty(at.shape, dtype=torch.float64)
    room = torch.empty(size * wide, vectors.width, dtype=torch.float64)  # small enough to stay in a processor's cache
    for some, there, to in zip(queries.double().split(size), at.clamp_min(0).split(size), far.split(size), strict=True):
        for near, result in zip(there.split(wide, dim=1), to.split(wide, dim=1), strict=True):
            found = vectors.at(near.reshape(-1))
            found = found.float() if found.itemsize < 4 else found  # PyTorch takes long for float16 to float64
            rows = room[: near.numel()].copy_(found).view(*near.shape, vectors.width)
            away = rows.sub_(some[:, None]).numpy()
            numpy.vecdot(away, away, out=result.numpy())
    far.masked_fill_((at < 0) | far.isnan(), torch.inf)
    order = torch.from_numpy(numpy.argsort(far.numpy(), axis=1, kind="stable")[:, :k])
    far, at = far.gather(1, order), at.gather(1, order)
    return Found(far, at.masked_fill(far == torch.inf, -1))
