"""Exact search, which compares every vector with every query, one block of vectors at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.search import LONG, SCALE, Search, SearchResult, VectorIndex, Vectors, check_queries

__all__ = ["ExactSearch"]

QUERIES = 256  # queries of one matrix product
VECTORS = 1 << 11  # vectors of one matrix product, few enough for its scores to stay in cache
RESULTS = 1 << 22  # results of the queries of one matrix product, at most; one query may have more
SPARE = 16  # candidates beyond k; with more vectors at the k-th distance, a query is measured pair by pair
NUMBERS = 1 << 18  # coordinates of the candidates that one step measures


@dataclass(frozen=True)
class ExactSearch(Search):
    """Exact search for the k nearest vectors; of equally near vectors, lower indices come first.

    Choose it if the vectors are few enough to be read for each batch of queries, or if none of the k nearest may be
    missed. It is the reference for every approximate search. For each query q, products in float64 give |v|^2 - 2 q.v
    of each vector v, and select k candidates and a few more. Sums of squared differences in float64 rank the
    candidates. If rounding may have left out a vector, these sums are computed for all vectors. A search holds one
    block of vectors in memory. It never returns vectors with NaN or infinity.

    Errors: ValueError if queries have another width, NaN or infinity, or if queries or vectors have a length of 2^60 or
    more.
    """

    def index(self, vectors: Vectors) -> "ExactIndex":
        return ExactIndex(vectors)

    def product_index(self, width: int) -> None:
        return None


class ExactIndex(VectorIndex):
    """Index of an `ExactSearch`, which compares a query with all vectors in every search.

    vectors: vectors to search.
    """

    def __init__(self, vectors: Vectors):
        self.vectors = vectors

    @torch.no_grad()
    def search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        queries, k = check_queries(queries, self.vectors), min(check_at_least("k", k, 1), self.vectors.count)
        if not k or not len(queries):
            return _padding(queries, k)
        parts = queries.split(max(1, min(QUERIES, RESULTS // k)))
        distances, places = zip(*(self._search(part, k) for part in parts), strict=True)
        return SearchResult(torch.cat(distances), torch.cat(places))

    def _search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        scores, candidates = self._candidates(queries, k + SPARE)
        result = rank_candidates(self.vectors, queries, candidates, k)
        squares = queries.square().sum(1)
        left_out = scores.amax(1) + squares  # at most the rounded distance of any vector that is not a candidate
        # Products and sums of D terms lose at most D eps (|q|^2 + |v|^2), and |v|^2 <= 2 |q|^2 + 2 |q - v|^2.
        rounding = 4 * (self.vectors.width + 16) * torch.finfo(torch.float64).eps * (squares + left_out)
        doubtful = (left_out - rounding <= result.distances[:, -1]).nonzero()[:, 0]  # NaN if no vector is left out
        if len(doubtful):
            result.distances[doubtful], result.places[doubtful] = self._measure(queries[doubtful], k)
        return result

    def _candidates(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        """Return the k smallest scores |v|^2 - 2 q.v of each query and their places, in no order.

        Padding has score inf and place -1.
        """
        best = _padding(queries, k)
        for begin, rows, squares in self._blocks():
            scores = torch.addmm(squares, queries, rows.T, alpha=-2)  # [N, S]; inf or NaN for vectors with such numbers
            smaller = scores.numpy() < best.distances.amax(1, keepdim=True).numpy()
            entries = torch.from_numpy(numpy.flatnonzero(smaller))  # half the time of PyTorch's nonzero
            query, column = entries // len(rows), entries % len(rows)
            counts = query.bincount(minlength=len(queries))
            slot = k + torch.arange(len(query), device="cpu") - (counts.cumsum(0) - counts)[query]
            merged = _padding(queries, k + int(counts.max()))  # the best so far, then smaller scores of this block
            merged.distances[:, :k], merged.places[:, :k] = best
            merged.distances[query, slot], merged.places[query, slot] = scores[query, column], begin + column
            smallest, order = merged.distances.topk(k, largest=False, sorted=False)
            best = SearchResult(smallest, merged.places.gather(1, order))
        return best

    def _measure(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        """Return the k nearest vectors by sums of squared differences from every vector."""
        best = _padding(queries, k)
        for begin, rows, _ in self._blocks():
            distances = torch.stack([(rows - query).square_().sum(1) for query in queries])
            places = torch.arange(begin, begin + len(rows), device="cpu").expand_as(distances)
            best = _k_smallest(torch.cat([best.distances, distances], 1), torch.cat([best.places, places], 1), k)
        return best

    def _blocks(self) -> Iterator[tuple[int, Float[Tensor, "S D"], Float[Tensor, " S"]]]:
        """Yield the number of each block's first vector, its vectors in float64, and their squared lengths."""
        for begin, block in self.vectors.blocks(VECTORS):
            rows = block.to(torch.promote_types(block.dtype, torch.float32)).double()  # directly, float16 takes longer
            squares = rows.square().sum(1)
            if bool((long := squares >= LONG**2).any()) and len(long := (long & rows.isfinite().all(1)).nonzero()):
                raise ValueError(f"search failed: got vector {begin + int(long[0])} of length 2^60 or more. {SCALE}")
            yield begin, rows, squares


def rank_candidates(
    vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int
) -> SearchResult:
    """Return the k nearest candidates of each query by sums of squared differences in float64.

    vectors: vectors that are searched.
    queries: one query per row.
    places: indices of the candidates of each query in `vectors`; -1 is padding.
    k: number of results per query.
    """
    places = places.sort(1).values  # for equal distances, the smaller place comes first
    distances = queries.new_empty(places.shape)
    size = max(1, NUMBERS // max(places.shape[1] * vectors.width, 1))
    for query, place, out in zip(queries.split(size), places.split(size), distances.split(size), strict=True):
        rows = vectors.at(place.clamp_min(0).flatten()).double().view(*place.shape, vectors.width)  # [n, c, D]
        torch.sum((rows - query[:, None]).square_(), 2, out=out)
    return _k_smallest(distances.masked_fill_(places < 0, torch.inf), places, k)


def _k_smallest(distances: Float[Tensor, "N n"], places: Int[Tensor, "N n"], k: int) -> SearchResult:
    """Return the k smallest distances of each row; of equal distances, the first ones.

    Distances that are inf or NaN become padding: inf and place -1.
    """
    distances = distances.masked_fill(distances.isnan(), torch.inf)
    smallest, order = (x[:, :k] for x in distances.sort(dim=1, stable=True))
    return SearchResult(smallest, places.gather(1, order).masked_fill_(smallest == torch.inf, -1))


def _padding(queries: Float[Tensor, "N D"], k: int) -> SearchResult:
    size = len(queries), k
    return SearchResult(queries.new_full(size, torch.inf), queries.new_full(size, -1, dtype=torch.long))
