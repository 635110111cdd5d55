"""Measured: the nearest vectors of queries, whose distances are computed as soon as scores do not rule them out."""

from collections.abc import Sequence

import numpy
import torch
from torch.nn import functional as F

from kinformer.core.search import Found
from kinformer.nn.search._kept import INF, Left, Limits, Nearest, held
from kinformer.nn.search._sampled import Sampled


class Measured(Nearest):
    """Distances by products in place of scores: where so many are wanted of so few vectors that this takes less time
    than to gather those pair by pair in the end."""

    kind = numpy.float64

    def __init__(self, sampled: Sampled, k: int, limits: Limits):
        super().__init__(sampled.pairs, k, limits)
        self.sampled = sampled

    def _kept(self, scores: numpy.ndarray, at: numpy.ndarray, left: Left) -> numpy.ndarray:
        return self.sampled.far(*left)

    def _make_room(self) -> None:
        far, places = held([self], slice(None))
        near, order = self.sampled.best(far, places, self.k)
        wide = order.shape[1]
        self.scores[:, :wide] = numpy.take_along_axis(far, order, 1)
        self.places[:, :wide] = numpy.take_along_axis(places, order, 1)
        self.counts = (near < INF).sum(1)
        if wide == self.k:
            self.limits = self.limits.lowered(torch.from_numpy(near[:, -1]))


def nearest_measured(sampled: Sampled, parts: Sequence[Nearest], rows: slice) -> Found:
    """The k nearest of some rows, by what measures these, of what several found for them."""
    k = parts[0].k
    far, places = held(parts, rows)
    near, order = (torch.from_numpy(one) for one in sampled.best(far, places, k))
    there = torch.from_numpy(places).gather(1, order).masked_fill_(near == INF, -1)
    more = (0, k - order.shape[1])
    return Found(F.pad(near, more, value=INF), F.pad(there, more, value=-1))
