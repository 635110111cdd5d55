"""Sampled: squared distances of queries and vectors, pair by pair, by products in float64 off a centre."""

import warnings

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.nn.search._pairs import EVEN, Pairs, room

DIGITS = 2.0**-27  # of a distance: what may lose more of itself is measured by sums of squares


class Squares:
    """The squared lengths of vectors off a centre, or as they lie if there is none, in float64, once they are known."""

    def __init__(self, centre: Float[Tensor, " D"] | None, count: int):
        self.centre = None if centre is None else centre.double()
        self.known = numpy.full(count, numpy.nan)

    def put(self, own: Float[Tensor, "s D"], first: int, out: numpy.ndarray) -> None:
        """Of vectors off the centre, `first` of all of them first."""
        known, numbers = self.known[first : first + own.shape[0]], own.numpy()
        if numpy.isnan(known).any():
            numpy.vecdot(numbers, numbers, out=known)
        out[:] = known


class Sampled:
    """|q|^2 + |k|^2 - 2 q.k is the product of (-2 q, |q|^2, 1) and (k, 1, |k|^2).

    Where many queries want vectors that lie together none is gathered, which takes most of the time. A distance is the
    same beside whichever others it is computed, and for equal vectors. Each thread has one of its own.
    """

    def __init__(self, pairs: Pairs, squares: Squares):
        self.pairs, self.squares, self.width = pairs, squares, pairs.vectors.width
        away = pairs.queries if squares.centre is None else pairs.queries - squares.centre
        self.own = away.square().sum(1)
        self.queries = room(len(away), -(-(self.width + 2) // EVEN) * EVEN).zero_()
        self.queries[:, : self.width], self.queries[:, self.width] = -2 * away, self.own
        self.queries[:, self.width + 1] = 1
        self.rows = room(0, self.queries.shape[1])

    def lost(self, far: numpy.ndarray) -> numpy.ndarray:
        """What a distance of at most so much, one for each query, may be off by, and a sum of squares too.

        Of n products that are added no more than n u of what their sizes come to is lost, u being half of eps; these
        sizes are at most 2 |q|^2 + 2 |k|^2, and taking off the centre, the squares and sums of squared differences lose
        no more than half of that again.
        """
        own = self.own.numpy()
        return 3 * (self.width + 16) * numpy.finfo(float).eps * (own + (own**0.5 + far**0.5) ** 2)

    def far(
        self, ends: numpy.ndarray, columns: numpy.ndarray, vectors: Float[Tensor, "s D"], first: int
    ) -> numpy.ndarray:
        """Of each query and some of these vectors, `first` of all of them first.

        Those of query n stand from ends[n] to ends[n + 1].
        """
        count = vectors.shape[0]
        if self.rows.shape[0] < count:
            self.rows = room(count, self.queries.shape[1]).zero_()
            self.rows[:, self.width] = 1
        rows = self.rows[:count]
        own = rows[:, : self.width].copy_(vectors.float() if vectors.itemsize < 4 else vectors)
        if self.squares.centre is not None:
            own.sub_(self.squares.centre)
        self.squares.put(own, first, rows[:, self.width + 1].numpy())
        far = room(columns.size).zero_()
        where, of, size = torch.from_numpy(ends), torch.from_numpy(columns), (len(self.queries), count)
        pairs = torch.sparse_csr_tensor(where, of, far, size, device="cpu", check_invariants=False)
        torch.sparse.sampled_addmm(pairs, self.queries, rows.T, beta=0.0, out=pairs)
        return far.numpy()

    def best(self, far: numpy.ndarray, places: numpy.ndarray, k: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """The distances of the k nearest of each row in order, inf being none, and where in the row they stand.

        Of equal ones those come first that do by their places. What products do not tell from its neighbour is measured
        by sums of squares, and so is what they lose too many digits of, as it is much nearer to its query than to the
        centre; and the last, beside which others may stand.
        """
        k = min(k, far.shape[1])
        order = self._candidates(far, k)
        near = numpy.take_along_axis(far, order, 1)
        first = near[:, :k]
        lost = self.lost(first.max(1, initial=0, where=first < numpy.inf))[:, None]
        with numpy.errstate(invalid="ignore"):  # inf less inf is no number, and not close
            close = numpy.diff(near) <= 2 * lost
        doubt = near < lost / DIGITS
        doubt[:, 1:] |= close
        doubt[:, :-1] |= close
        doubt[:, k - 1 : k] = True
        rows, at = divmod(numpy.flatnonzero(doubt & (near < numpy.inf)), max(near.shape[1], 1))
        there = torch.from_numpy(places[rows, order[rows, at]])
        near[rows, at] = self.pairs.of(torch.from_numpy(rows), there).numpy()
        if len(tied := numpy.flatnonzero(close.any(1))):
            held = numpy.take_along_axis(places[tied], order[tied], 1)
            again = numpy.lexsort((held, near[tied]), axis=1)
            near[tied], order[tied] = (numpy.take_along_axis(one[tied], again, 1) for one in (near, order))
        return near[:, :k], order[:, :k]

    def _candidates(self, far: numpy.ndarray, k: int) -> numpy.ndarray:
        """Where the k nearest of each row stand, and all that may be as near as the last of them, in order."""
        if far.shape[1] > 2 * k:  # else to find them first takes as long as to sort the others too
            some = far.argpartition(k - 1, axis=1)
            wide = self._within(far, numpy.take_along_axis(far, some[:, k - 1 : k], 1))
            some = (far.argpartition(wide - 1, axis=1) if wide > k else some)[:, : max(wide, k)]
            return numpy.take_along_axis(some, numpy.take_along_axis(far, some, 1).argsort(1), 1)
        order = far.argsort(1)  # a stable one takes four times as long
        wide = self._within(far, numpy.take_along_axis(far, order[:, k - 1 : k], 1)) if far.shape[1] > k else k
        return order[:, : max(wide, k)]

    def _within(self, far: numpy.ndarray, last: numpy.ndarray) -> int:
        """How many of a row are at most as far as the last, or may be."""
        last = last + 2 * self.lost(last[:, 0])[:, None]
        return int(((far <= last) & (far < numpy.inf)).sum(1).max(initial=0))


with warnings.catch_warnings():  # it is said once that such tensors are in beta; of them one product is used
    warnings.filterwarnings("ignore", "Sparse CSR tensor support")
    none = torch.zeros(2, dtype=torch.long, device="cpu")
    torch.sparse_csr_tensor(none, none[:0], none[:0], (1, 1), device="cpu", check_invariants=False)
