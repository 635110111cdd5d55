"""Pairs: squared distances of queries and vectors, pair by pair, in float64; and the nearest of what was measured."""

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.search import Found, Vectors

NUMBERS = 1 << 17  # of vectors that are taken at a time: what a processor's cache has room for
EVEN = 8  # numbers; where each row begins at a multiple of so many, BLAS adds up all rows in one order


def room(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers to be written, beside those that are searched: on the CPU, whatever a program's default device is."""
    return torch.empty(size, dtype=dtype, device="cpu")


class Pairs:
    """Sums of squared differences in float64, the same for equal vectors. Each thread has pairs of its own."""

    def __init__(self, vectors: Vectors, queries: Float[Tensor, "N D"]):
        self.vectors, self.queries = vectors, queries.double()
        self.size = max(1, NUMBERS // max(vectors.width, 1))
        self.room = room(self.size, -(-vectors.width // EVEN) * EVEN)[:, : vectors.width]

    def each(self, places: Int[Tensor, "N c"]) -> Float[Tensor, "N c"]:
        """Of every query and some vectors of its own."""
        if places.shape[1] < self.size // 4:  # many small steps would take longer
            rows = torch.from_numpy(numpy.arange(len(places)).repeat(places.shape[1]))
            return self.of(rows, places.reshape(-1)).view(places.shape)
        far = room(*places.shape)
        for asked, there, to in zip(self.queries, places, far, strict=True):
            for some, out in zip(there.split(self.size), to.split(self.size), strict=True):
                self._measure(asked, some, out)
        return far

    def of(self, rows: Int[Tensor, " n"], places: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Of the queries of these rows and the vectors of these places."""
        far = room(*rows.shape)
        parts = (each.split(self.size) for each in (rows, places, far))
        for some, there, out in zip(*parts, strict=True):
            self._measure(self.queries.index_select(0, some), there, out)
        return far

    def _measure(self, asked: Float[Tensor, "*n D"], places: Int[Tensor, " n"], out: Float[Tensor, " n"]) -> None:
        found = self.vectors.at(places)
        found = found.float() if found.itemsize < 4 else found  # PyTorch takes long for float16 to float64
        away = self.room[: found.shape[0]].copy_(found).sub_(asked).numpy()
        numpy.vecdot(away, away, out=out.numpy())


def ordered(far: Float[Tensor, "N n"], places: Int[Tensor, "N n"], k: int) -> Found:
    """The k nearest of each row, inf being none; of equal ones the first, by their places."""
    if far.shape[1] < k:
        far = F.pad(far, (0, k - far.shape[1]), value=torch.inf)
        places = F.pad(places, (0, k - places.shape[1]), value=-1)
    order = torch.from_numpy(numpy.argsort(far.numpy(), axis=1)[:, : k + 1])  # four times as fast as a stable one
    best = far.gather(1, order)
    tied = ((best[:, 1:] == best[:, :-1]) & best[:, 1:].isfinite()).any(1).nonzero()[:, 0]
    if len(tied):
        again = numpy.lexsort((places[tied].numpy(), far[tied].numpy()), axis=1)
        order[tied] = torch.from_numpy(again[:, : k + 1])
    best, order = best[:, :k], order[:, :k]
    return Found(best, places.gather(1, order).masked_fill(best == torch.inf, -1))


def nearest_of(vectors: Vectors, queries: Float[Tensor, "N D"], places: Int[Tensor, "N c"], k: int) -> Found:
    """The k nearest of some candidates of each query, -1 being none, by distances in float64; equal ones in order."""
    far = Pairs(vectors, queries).each(places.clamp_min(0))
    return ordered(far.masked_fill((places < 0) | far.isnan(), torch.inf), places, k)
