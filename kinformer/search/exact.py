"""Exact: every vector is looked at, a block at a time, by one matrix product each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import at_least
from kinformer.core.search import Found, Index, Search, Vectors
from kinformer.search.support.kept import Nearest

QUERIES = 512  # that are looked at together
SLACK = 32  # candidates beyond k, so that rounding seldom leaves a doubt
PAIRS = 1 << 11  # of a query and a vector whose distance is computed anew at a time


@dataclass(frozen=True)
class Exact(Search):
    """The k nearest vectors, exactly: as if all distances were computed in float64, and of equal ones the first.

    Choose it where a store is small enough to be read for each batch of queries, and wherever recall matters: it is the
    measure of every other search. |q - k|^2 = |q|^2 - 2 q.k + |k|^2 by matrix products in float32 names candidates,
    whose distances are computed again as sums of squared differences in float64. Where a bound on the rounding of the
    product leaves it in doubt whether others are as near (many equal vectors), all that may be are computed so. Beside
    the vectors 4 bytes of each are held. Vectors with NaN are never found.

    Errors: ValueError for queries of another width, and for queries with NaN or infinity.
    """

    def index(self, vectors: Vectors) -> "Blocks":
        return Blocks(vectors)

    def products(self, width: int) -> None:
        return None


class _Block(NamedTuple):
    """Some vectors, the number of the first, and half of their squared lengths."""

    first: int
    vectors: Float[Tensor, "S D"]
    lengths: Float[Tensor, " S"]

    def halves(self, queries: Float[Tensor, "N D"]) -> Float[Tensor, "N S"]:
        """|k|^2 / 2 - q.k: half of the distance, without what is the same for all vectors."""
        return torch.addmm(self.lengths[None], queries, self.vectors.T, alpha=-1)


class Blocks(Index):
    """Vectors that are all looked at for each batch of queries; their squared lengths are kept once they are known."""

    def __init__(self, vectors: Vectors):
        self.vectors = vectors
        self.lengths = torch.empty(vectors.count)
        self.known = 0

    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # or products would be rounded further than the bound allows for
    def search(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        queries, k = asked(queries, self.vectors), min(at_least("k", k, 1), self.vectors.count)
        found = [self._some(some, k) for some in queries.split(QUERIES)]
        return Found(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def blocks(self) -> Iterator[_Block]:
        """All vectors in float32, with half of their squared lengths; those with NaN or infinity are infinitely far."""
        room = torch.empty(0, self.vectors.width)  # asking the system for it each time takes longer than to fill it
        for first, vectors in self.vectors.blocks():
            end = first + len(vectors)
            if vectors.dtype != torch.float32:
                room = room if len(vectors) <= len(room) else torch.empty(vectors.shape)
                vectors = room[: len(vectors)].copy_(vectors)
            if end > self.known:
                half = torch.linalg.vector_norm(vectors, dim=1).square_().div_(2)
                self.lengths[first:end], self.known = half.nan_to_num_(torch.inf, torch.inf), end
            lengths = self.lengths[first:end]
            if bool(lengths.isinf().any()):  # 0 times infinity would be no number
                vectors = vectors.masked_fill(lengths[:, None].isinf(), 0.0)
            yield _Block(first, vectors, lengths)

    def _some(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        wide = min(k + SLACK, self.vectors.count)
        near = Nearest(len(queries), wide)
        for block in self.blocks():
            near.add(block.halves(queries), block.first)
        half, places = near.settled()
        found = nearest_of(self.vectors, queries, places, k)
        if wide == self.vectors.count or not len(queries):
            return found
        self._settle(queries, found, half[:, -1])
        return found

    def _settle(self, queries: Float[Tensor, "N D"], found: Found, furthest: Float[Tensor, " N"]) -> None:
        """Where something that was left out may be as near as the last that was found, look at all that may be."""
        own, error = queries.double().square().sum(1), self._error(queries)
        last = found.distances[:, -1]
        rows = (~(last < 2 * furthest.double() + own - 2 * error)).nonzero()[:, 0]
        if len(rows):
            limits = ((last - own) / 2 + error)[rows]
            best = self._all_as_near(queries[rows], limits, found.places.shape[1])
            for row, one in zip(rows.tolist(), best, strict=True):
                found.distances[row], found.places[row] = one

    def _error(self, queries: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """No half distance of a query is further than this from what it would be without rounding."""
        longest = self.lengths.where(self.lengths.isfinite(), 0).amax().double().mul(2).sqrt()
        size = (self.vectors.width + 8) * torch.finfo(queries.dtype).eps
        return size * (queries.double().square().sum(1).sqrt() + longest) ** 2

    def _all_as_near(
        self, queries: Float[Tensor, "N D"], limits: Float[Tensor, " N"], k: int
    ) -> list[tuple[Tensor, Tensor]]:
        """The k nearest of all vectors that may be as near as a query's limit, by distances in float64."""
        best = [(limits.new_full((k,), torch.inf), torch.full((k,), -1)) for _ in limits]
        for block in self.blocks():
            near = (block.halves(queries) <= limits[:, None]) & block.lengths.isfinite()
            for row in near.any(1).nonzero()[:, 0].tolist():
                few = near[row].nonzero()[:, 0]
                far = torch.cat([best[row][0], distances(queries[row], block.vectors[few])])
                order = far.argsort(stable=True)[:k]  # the first of equal ones stand first
                best[row] = far[order], torch.cat([best[row][1], few + block.first])[order]
        return best


def asked(queries: Float[Tensor, "N D"], vectors: Vectors) -> Float[Tensor, "N D"]:
    """Queries as a search takes them, in float32; ValueError for what cannot be asked."""
    if queries.dim() != 2 or queries.shape[1] != vectors.width:
        raise ValueError(
            f"queries of shape {list(queries.shape)} came; give [N, {vectors.width}], the width of the keys"
        )
    queries = queries.detach().cpu().float()
    if not bool(queries.isfinite().all()):
        raise ValueError("a query holds NaN or infinity, which is near to nothing; give finite numbers")
    return queries


def distances(queries: Float[Tensor, "*n D"], vectors: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """Sums of squared differences in float64."""
    return (queries.double() - vectors.double()).square().sum(-1)


def nearest_of(vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int) -> Found:
    """The k nearest of some candidates of each query, -1 being none, by distances in float64; equal ones in order."""
    places = places.sort(1).values  # so that a stable order of distances leaves the first of equal ones first
    count = places.shape[1]
    size = max(1, PAIRS // max(1, count))
    found, room = [], queries.new_empty(min(size, len(queries)), count, vectors.width, dtype=torch.float64)
    for some, at in zip(queries.split(size), places.split(size), strict=True):
        there = room[: len(some)].copy_(vectors.at(at.flatten().clamp_min(0)).unflatten(0, at.shape))
        far = there.sub_(some[:, None].double()).square_().sum(-1)
        found.append(far.masked_fill_((at < 0) | far.isnan(), torch.inf))
    far, order = torch.cat(found).sort(dim=1, stable=True)
    places = places.gather(1, order)
    return Found(far[:, :k], places.masked_fill(far == torch.inf, -1)[:, :k])
