"""Exact: every vector is looked at, a block at a time, by one matrix product each."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.checks import at_least
from kinformer.core.search import Found, Index, Search, Vectors

QUERIES = 1024  # that are looked at together
SLACK = 32  # candidates beyond k, so that rounding seldom leaves a doubt
PAIRS = 1 << 15  # of a query and a vector whose distance is computed anew at a time


@dataclass(frozen=True)
class Exact(Search):
    """The k nearest vectors, exactly: as if all distances were computed in float64, and of equal ones the first.

    Choose it where a store is small enough to be read for each batch of queries, and wherever recall matters: it is the
    measure of every other search. |q - k|^2 = |q|^2 - 2 q.k + |k|^2 by matrix products in float32 names candidates,
    whose distances are computed again as sums of squared differences in float64. Where a bound on the rounding of the
    product leaves it in doubt whether others are as near (many equal vectors), all that may be are computed so. Memory
    does not grow with the number of vectors. Vectors with NaN are never found.

    Errors: ValueError for queries of another width, and for queries with NaN or infinity.
    """

    def index(self, vectors: Vectors) -> "Blocks":
        return Blocks(vectors)

    def products(self, width: int) -> None:
        return None


class Blocks(Index):
    """Vectors that are all looked at for each batch of queries."""

    def __init__(self, vectors: Vectors):
        self.vectors = vectors

    @torch.no_grad()
    def search(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        queries, k = asked(queries, self.vectors), min(at_least("k", k, 1), self.vectors.count)
        found = [self._some(some, k) for some in queries.split(QUERIES)]
        return Found(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _some(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        wide = min(k + SLACK, self.vectors.count)
        near = _Near(queries, wide)
        for first, block in self.vectors.blocks():
            near.add(first, block)
        found = nearest_of(self.vectors, queries, near.places, k)
        if wide == self.vectors.count:
            return found
        rows = near.doubtful(found.distances[:, -1]).nonzero()[:, 0]
        if len(rows):
            limits = near.limits(found.distances[:, -1])[rows]
            for row, one in zip(rows.tolist(), self._all_as_near(queries[rows], limits, k), strict=True):
                found.distances[row], found.places[row] = one
        return found

    def _all_as_near(
        self, queries: Float[Tensor, "N D"], limits: Float[Tensor, " N"], k: int
    ) -> list[tuple[Tensor, Tensor]]:
        """The k nearest of all vectors that may be as near as a query's limit, by distances in float64."""
        best = [(limits.new_empty(0), torch.empty(0, dtype=torch.long)) for _ in limits]
        for first, block in self.vectors.blocks():
            block = block.to(queries.dtype)
            near = halves(queries, block) <= limits[:, None]
            for row in near.any(1).nonzero()[:, 0].tolist():
                few = near[row].nonzero()[:, 0]
                far = torch.cat([best[row][0], distances(queries[row], block[few])])
                order = far.argsort(stable=True)[:k]  # the first of equal ones stand first
                best[row] = far[order], torch.cat([best[row][1], few + first])[order]
        return best


class _Near:
    """The nearest vectors so far by half of their distance, without what is the same for all, in float32."""

    def __init__(self, queries: Float[Tensor, "N D"], wide: int):
        self.queries, self.longest = queries, queries.new_zeros(())
        self.half = queries.new_full((len(queries), wide), torch.inf)
        self.places = torch.full((len(queries), wide), -1)

    def add(self, first: int, block: Float[Tensor, "S D"]) -> None:
        """Look at a block whose first vector has this number."""
        block = block.to(self.queries.dtype)
        half, norms = halves(self.queries, block), block.square().sum(1)
        self.longest = torch.maximum(self.longest, norms.nan_to_num(0.0, posinf=0.0).amax().sqrt())
        nearer = half < self.half[:, -1:]
        counts = nearer.sum(1)
        if int(counts.sum()) > half.numel() // 8:
            self._keep(half.masked_fill(~nearer, torch.inf), torch.arange(first, first + len(block)).expand_as(half))
        elif bool(counts.any()):  # few, once the first blocks were seen
            rows, columns = nearer.nonzero(as_tuple=True)
            self._take(half[rows, columns], rows, columns + first, counts)

    def _take(self, half: Tensor, rows: Tensor, places: Tensor, counts: Tensor) -> None:
        """Candidates, the query of each, and how many each query has."""
        slot = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        every = half.new_full((len(counts), int(counts.amax())), torch.inf)
        at = torch.full(every.shape, -1)
        every[rows, slot], at[rows, slot] = half, places
        self._keep(every, at)

    def _keep(self, half: Tensor, places: Tensor) -> None:
        """The nearest of what is there and of this."""
        both = torch.cat([self.half, half], 1)
        self.half, taken = both.topk(self.half.shape[1], largest=False)
        self.places = torch.cat([self.places, places], 1).gather(1, taken)

    def error(self) -> Float[Tensor, " N"]:
        """No half distance of a query is further than this from what it would be without rounding."""
        size = self.queries.shape[1] + 8
        reach = self.queries.norm(dim=1).double() + self.longest.double()
        return size * torch.finfo(self.queries.dtype).eps * reach**2

    def doubtful(self, furthest: Float[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """Of which queries may something that was left out be as near as the k-th that was found?"""
        known = self.queries.double().square().sum(1)
        left_out = 2 * self.half[:, -1].double() + known - 2 * self.error()
        return ~(furthest < left_out)

    def limits(self, furthest: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """What the half distances are at most of all that is as near."""
        return (furthest - self.queries.double().square().sum(1)) / 2 + self.error()


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


def halves(queries: Float[Tensor, "N D"], block: Float[Tensor, "S D"]) -> Float[Tensor, "N S"]:
    """|k|^2 / 2 - q.k: half of the distance, without what is the same for all vectors."""
    return torch.addmm(block.square().sum(1)[None] / 2, queries, block.T, alpha=-1)


def distances(queries: Float[Tensor, "*n D"], vectors: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """Sums of squared differences in float64."""
    return (queries.double() - vectors.double()).square().sum(-1)


def nearest_of(vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int) -> Found:
    """The k nearest of some candidates of each query, -1 being none, by distances in float64; equal ones in order."""
    places = places.sort(1).values  # so that a stable order of distances leaves the first of equal ones first
    size = max(1, PAIRS // max(1, places.shape[1]))
    found = []
    for some, at in zip(queries.split(size), places.split(size), strict=True):
        rows = torch.arange(len(some)).repeat_interleave(at.shape[1])
        far = distances(some[rows], vectors.at(at.flatten().clamp_min(0))).view(at.shape)
        found.append(far.masked_fill((at < 0) | far.isnan(), torch.inf))
    far, order = torch.cat(found).sort(dim=1, stable=True)
    places = places.gather(1, order)
    return Found(far[:, :k], places.masked_fill(far == torch.inf, -1)[:, :k])
