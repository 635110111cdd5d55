"""Exact: every vector is looked at, a block at a time, by one matrix product each."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import at_least
from kinformer.core.search import Found, Index, Search, Vectors, spread
from kinformer.nn.search._crew import Crew, Setting, crew, cut
from kinformer.nn.search._kept import Limits, Nearest, nearest, room_for
from kinformer.nn.search._measured import Measured, nearest_measured
from kinformer.nn.search._pairs import Pairs, room
from kinformer.nn.search._sampled import Sampled, Squares

QUERIES = 512  # that are looked at together
ROWS = 1 << 6  # queries whose nearest are put in order together
DENSE = 0.6  # times as often as once, on average, is each vector wanted where distances are computed block by block
MEASURED = 1 << 12  # vectors that are then looked at together
SAMPLE = 1 << 12  # vectors by which it is guessed how near the nearest are
PART = 16  # one of so many vectors, at most, is among them: the guess takes as long as so much of the search
CENTRE = 1 << 8  # vectors whose mean is taken off all of them
SOME = 16  # queries that are shared among threads; the steps of fewer are shared by PyTorch
FAR = 32  # times as far as vectors lie apart is what they lie from 0, at most, where they are taken as they lie
FEW, MORE = 1 << 11, 1 << 14  # vectors changed before they are multiplied, by one thread or all of PyTorch's
SHARED = 1 << 16  # distances for which another thread is worth its start
NUMBERS, TOGETHER = 1 << 20, 1 << 17  # of a product, of how many vectors at most, are held: threads wait in short steps
HELD = 1 << 22  # distances that are held, of all threads together, if one query needs no more
LONG = 2.0**60  # of a vector: sums of squares of what is longer may be more than float32 holds


SCALE = "multiply vectors and queries by 2^-32, say, which changes no order"


@dataclass(frozen=True)
class Exact(Search):
    """The k nearest vectors, exactly: as if all distances were computed in float64, and of equal ones the first.

    Choose it where a store is small enough to be read for each batch of queries, and wherever recall matters: it is the
    measure of every other search. |q - k|^2 = |q|^2 - 2 q.k + |k|^2 by matrix products in float32, less a bound on
    their rounding, leaves out what is further than k others; the distances of all else are computed as sums of squared
    differences in float64. Where each vector is wanted about once or more, by all queries together, they are computed
    by products in float64, and only what these leave in doubt (which of two is nearer, or the eighth digit of a
    distance) by such sums. The mean of some vectors is taken off all of them before, as states of a model lie close
    together and far from 0. How far the nearest are is guessed from a sample, so that most is left out at once; where
    fewer are as near, the query is asked again without. Beside the vectors 4 bytes of each are held, 12 where products
    measure. Vectors with NaN or infinity are never found. A search is shared among PyTorch's threads, and takes one to
    three times as long as a bare product of all queries and vectors; up to four were measured on two threads where
    this product takes no more than ten milliseconds (`bench/README.md`).

    Errors: ValueError for queries of another width, for queries with NaN or infinity, and for queries or vectors longer
    than 2^60, as float32 holds no sums of their squares.
    """

    def index(self, vectors: Vectors) -> "Blocks":
        with torch.device("cpu"):  # where vectors lie, also where a model is built without numbers
            return Blocks(vectors)

    def products(self, width: int) -> None:
        return None


class _Block(NamedTuple):
    """Some vectors, and half of their squared lengths or a little less."""

    vectors: Float[Tensor, "S D"]
    lengths: Float[Tensor, " S"]


class _Asked(NamedTuple):
    """Some queries, as they are and off the centre of the vectors; of each so many vectors are wanted.

    squares: of the vectors, where so many are wanted of so few that none is gathered pair by pair to be measured.
    """

    queries: Float[Tensor, "N D"]
    away: Float[Tensor, "N D"]
    k: int
    squares: Squares | None

    def of(self, rows: Int[Tensor, " n"]) -> "_Asked":
        return self._replace(queries=self.queries[rows], away=self.away[rows])


# products of float32 in float32, also where a program has allowed for less; the setting's older name raises where a
# program uses the newer ones
PRODUCTS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
PRECISELY = Setting(lambda: PRODUCTS.fp32_precision, partial(setattr, PRODUCTS, "fp32_precision"), "ieee")


class Blocks(Index):
    """Vectors that are all looked at for each batch of queries; their squared lengths are kept once they are known."""

    @torch.inference_mode(False)  # what is kept is written to by searches outside of it, and by other threads
    @torch.no_grad()
    def __init__(self, vectors: Vectors):
        self.vectors = vectors
        self.centre, usual = _centre(vectors)
        self.away = float(self.centre.double().square().sum().sqrt())
        # as they lie only where float32 holds them: what is longer is rounded once it is off the centre
        kind = vectors.at(spread(vectors.count, 1)).dtype
        self.long, self.changed = kind == torch.float64, kind != torch.float32
        self.near = self.away <= FAR * usual and not self.long
        # Of n products that are added in any order no more than n u of what their sizes come to is lost, u being half
        # of eps; taking off the centre, the length and the difference lose some more. |q||k| + |k|^2 / 2, these sizes,
        # is at most |q|^2 + |k|^2, and |q| times the centre's length is what vectors as they lie may add.
        self.lost = (vectors.width + 16) * torch.finfo(torch.float32).eps / 2
        # half of their squares, off the centre, less what may be lost by them: not yet known
        self.lengths = room(vectors.count, dtype=torch.float32).fill_(torch.nan)
        self.sample: _Block | None = None  # of vectors from all over, once it is wanted
        self.squares: Squares | None = None  # of their lengths in float64, once they are wanted
        self.known, self.odd = False, True  # whether they are, and whether some vectors may be no numbers

    @torch.inference_mode(False)
    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # or products would be rounded further than the bound allows for
    def search(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        queries, k = asked(queries, self.vectors), min(at_least("k", k, 1), self.vectors.count)
        found = _nothing(len(queries), k)
        if not len(queries) or not k:
            return found
        together, threads = _shared(len(queries), self.vectors.count, k)
        centre, dense = self.centre.double(), min(len(queries), QUERIES) * k > DENSE * self.vectors.count
        with PRECISELY.held(), crew(threads) as by:
            if dense and self.squares is None:
                self.squares = Squares(None if self.near else self.centre, self.vectors.count)
            squares = self.squares if dense else None
            for some, *to in zip(*(one.split(together) for one in (queries, *found)), strict=True):
                self._some(_Asked(some, (some - centre).float(), k, squares), by, Found(*to))
        return found

    def _some(self, asked: _Asked, by: Crew, found: Found) -> None:
        limits = self._guess(asked, by)
        self._nearest(asked, limits, by, found)
        again = (found.distances[:, -1] > limits).nonzero()[:, 0]  # fewer than k are as near as was guessed
        if len(again):
            best = _nothing(len(again), asked.k)
            self._nearest(asked.of(again), _anything(len(again)), by, best)
            found.distances[again], found.places[again] = best

    def _nearest(self, asked: _Asked, limits: Float[Tensor, " N"], by: Crew, found: Found) -> None:
        """The nearest of each query: right where k are within its limit."""
        lying, squares = self.known and self.near, asked.squares
        base = self._base(asked.away, lying)
        size = min(MEASURED if squares else TOGETHER, max(NUMBERS // len(limits), 1))

        def part(ends: tuple[int, int]) -> Nearest:
            pairs, near = Pairs(self.vectors, asked.queries), Limits(limits, base)
            kept = Measured(Sampled(pairs, squares), asked.k, near) if squares else Nearest(pairs, asked.k, near)
            few = min(FEW if torch.get_num_threads() == 1 else MORE, size)
            own, held = (room(*one, dtype=torch.float32) for one in ((few, self.vectors.width), (len(limits) * size,)))
            for first, vectors in self.vectors.blocks(size, *ends):
                scores = held[: len(limits) * len(vectors)].view(len(limits), -1)
                self._score(asked.away, first, vectors, own, lying, scores)
                kept.add(scores.numpy(), vectors, first)
            return kept

        parts = by.work(part, cut(self.vectors.count, by.count))
        if not self.known:
            self.known, self.odd = True, bool(self.lengths.isinf().any())

        def joined(ends: tuple[int, int]) -> None:
            for begin in range(*ends, ROWS):
                rows = slice(begin, min(begin + ROWS, ends[1]))
                pairs = Pairs(self.vectors, asked.queries[rows])
                if squares:
                    best = nearest_measured(Sampled(pairs, squares), parts, rows)
                else:
                    best = nearest(pairs, base[rows], parts, rows)
                found.distances[rows], found.places[rows] = best

        by.work(joined, cut(len(limits), by.count))

    def _score(
        self,
        away: Float[Tensor, "N D"],
        first: int,
        vectors: Float[Tensor, "S D"],
        own: Float[Tensor, "s D"],
        lying: bool,
        scores: Float[Tensor, "N S"],
    ) -> None:
        """Halves of distances of some vectors, `first` of all of them first, off their centre or as they lie.

        What is changed before is changed few at a time, in steps so short that each line here counts. The lengths are
        inf for vectors with NaN and infinity.
        """
        changed, new = self.changed or not lying, self.odd or not self.known
        few = len(own) if changed else len(vectors)
        lengths = self.lengths[first : first + len(vectors)].split(few)
        for number, (some, half, out) in enumerate(zip(vectors.split(few), lengths, scores.split(few, 1), strict=True)):
            if changed:
                to = own[: some.shape[0]]
                some = to.copy_(some - self.centre if self.long else some)
            if not (lying or self.long):
                some.sub_(self.centre)
            if new:
                some = self._looked_at(some, half, first + number * few)
            _halves(away, some, half, out)

    def _looked_at(self, some: Float[Tensor, "s D"], half: Float[Tensor, " s"], first: int) -> Float[Tensor, "s D"]:
        """Vectors whose lengths were not known, or that may be no numbers: 0 times infinity would be none."""
        if not self.known and bool(half.isnan().any()):
            own = _half_squares(some, torch.arange(first, first + len(some), device="cpu"))
            half.copy_(own.mul_(1 - 2 * self.lost))
        return some.masked_fill(half[:, None].isinf(), 0.0) if self.odd and bool(half.isinf().any()) else some

    def _base(self, away: Float[Tensor, "N D"], lying: bool) -> Float[Tensor, " N"]:
        """What is at least to be added to a score of each query to have half of the squared distance."""
        own = away.double().square().sum(1)
        base = own / 2 - self.lost * own
        return base + away.double() @ self.centre.double() - self.lost * own.sqrt() * self.away if lying else base

    def _sample(self, count: int) -> _Block:
        """Vectors from all over."""
        at = spread(self.vectors.count, count)
        some = (self.vectors.at(at) - self.centre).float()
        half = _half_squares(some, at)
        return _Block(some.masked_fill(half[:, None].isinf(), 0.0), half)

    def _guess(self, asked: _Asked, by: Crew) -> Float[Tensor, " N"]:
        """Squared distances within which a little more than k vectors should be, by a sample; inf for none.

        Most of what is further is left out by one comparison, where many are wanted too.
        """
        count = min(SAMPLE, self.vectors.count // PART)
        share = asked.k * count / self.vectors.count
        rank = math.ceil(share + 3 * share**0.5 + 3)  # so that hardly ever too few are nearer
        if rank > count // 2:
            return _anything(len(asked.queries))
        sample = self.sample = self.sample or self._sample(count)

        def part(ends: tuple[int, int]) -> Float[Tensor, " n"]:
            away = asked.away[slice(*ends)]
            halves = numpy.partition(_halves(away, *sample).numpy(), rank - 1, axis=1)[:, rank - 1]
            return torch.from_numpy(halves.astype(numpy.float64)) * 2 + away.double().square().sum(1)

        return torch.cat(by.work(part, cut(len(asked.queries), by.count)))


def _halves(
    away: Float[Tensor, "N D"], vectors: Float[Tensor, "S D"], lengths: Float[Tensor, " S"], out: Tensor | None = None
) -> Float[Tensor, "N S"]:
    """|k|^2 / 2 - q.k: half of the distance, without what is the same for all vectors; in `out`, if it is there."""
    return torch.addmm(lengths, away, vectors.T, alpha=-1, out=out)


def _shared(count: int, vectors: int, k: int) -> tuple[int, int]:
    """How many queries are looked at together, and by how many threads, so that what they hold has a bound.

    0 stands for PyTorch's own threads, which share a long step: few queries.
    """
    held, together = max(HELD // room_for(k), 1), min(count, QUERIES)
    threads, most = min(torch.get_num_threads(), -(-together * vectors // SHARED)), held // min(together, SOME)
    if count < SOME:
        threads = 0
    elif most < threads:
        threads = most if most > 1 else 0
    return min(max(held // max(threads, 1), 1), QUERIES), threads


def _nothing(count: int, k: int) -> Found:
    """Room for what is found."""
    return Found(room(count, k), room(count, k, dtype=torch.long))


def _anything(count: int) -> Float[Tensor, " n"]:
    """Limits that leave nothing out."""
    return room(count).fill_(torch.inf)


def _centre(vectors: Vectors) -> tuple[Float[Tensor, " D"], float]:
    """About where the vectors lie, the mean of some, of those that are numbers; and how far these are from there."""
    some = vectors.at(spread(vectors.count, CENTRE)).float()
    some = some[(some.abs() < LONG).all(1)].double()  # NaN is not
    if not len(some):
        return room(vectors.width, dtype=torch.float32).zero_(), 0.0
    return some.mean(0).float(), float((some - some.mean(0)).square().sum(1).mean().sqrt())


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
    """Queries as a search takes them, in float64; ValueError for what cannot be asked."""
    if queries.dim() != 2 or queries.shape[1] != vectors.width:
        raise ValueError(
            f"queries of shape {list(queries.shape)} came; give [N, {vectors.width}], the width of the keys"
        )
    queries = queries.detach().cpu().double()
    if not bool(queries.isfinite().all()):
        raise ValueError("a query holds NaN or infinity, which is near to nothing; give finite numbers")
    if len(queries) and float(queries.abs().amax()) * queries.shape[1] ** 0.5 >= LONG:
        raise ValueError(f"a query is longer than 2^60, and float32 holds no sum of such squares; {SCALE}")
    return queries
