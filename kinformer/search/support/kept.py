"""Kept: the smallest numbers of rows that come block by block, without sorting each block."""

from collections.abc import Sequence

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


class Nearest:
    """For each row the `wide` smallest numbers so far, none NaN, and where they came from; inf and -1 for fewer.

    What is smaller than a row's bound is put behind what is there, in the order in which it comes; where there is no
    room, the smallest are kept, and the largest of these is the bound from then on.

    bounds: of each row, to begin with: inf, or a guess. Where fewer than `wide` are smaller the guess was too small,
        and the row is one of `short`.
    """

    def __init__(self, bounds: Float[Tensor, " N"], wide: int):
        self.wide, self.room = wide, 3 * wide + 64
        self.half = torch.full((len(bounds), self.room), torch.inf)
        self.places = torch.full((len(bounds), self.room), -1)
        self.counts = torch.zeros(len(bounds), dtype=torch.long)
        self.bounds = bounds[:, None].clone()
        self.unbound = bool(bounds.isinf().any())
        self.smaller = numpy.empty(0, bool)

    def add(self, block: Float[Tensor, "N S"], first: int) -> None:
        """Look at the numbers of some places in order, `first` of them first."""
        if not block.numel():
            return
        if self.unbound:
            self._merge(block, first)
            return
        at = torch.from_numpy(self._smaller(block.numpy()))
        if not len(at):
            return
        rows = at // block.shape[1]
        counts = rows.bincount(minlength=len(block))
        if int((self.counts + counts).amax()) > self.room:
            self._keep(self.half, self.places)
            if int(counts.amax()) > self.room - self.wide:
                self._merge(block, first)
                return
        begins = torch.arange(len(block)) * self.room + self.counts - counts.cumsum(0) + counts
        slots = begins[rows] + torch.arange(len(at))
        self.half.view(-1)[slots] = block.reshape(-1)[at]
        self.places.view(-1)[slots] = at - rows * block.shape[1] + first
        self.counts += counts

    @classmethod
    def joined(cls, parts: "Sequence[Nearest]") -> "Nearest":
        """What several found for the same rows, bounds and `wide`, each among places of its own."""
        first = parts[0]
        if len(parts) == 1 or not len(first.counts):
            return first
        self = cls(first.bounds[:, 0], first.wide)
        used = [int(one.counts.amax()) for one in parts]
        self.room = max(sum(used), self.wide)
        self.half = torch.cat([one.half[:, :size] for one, size in zip(parts, used, strict=True)], 1)
        self.places = torch.cat([one.places[:, :size] for one, size in zip(parts, used, strict=True)], 1)
        self.half = F.pad(self.half, (0, self.room - sum(used)), value=torch.inf)
        self.places = F.pad(self.places, (0, self.room - sum(used)), value=-1)
        self.counts = torch.stack([one.counts for one in parts]).sum(0)
        return self

    def settled(self) -> tuple[Float[Tensor, "N w"], Int[Tensor, "N w"]]:
        """The smallest numbers of each row, in order, and their places."""
        half, at = self.half.topk(self.wide, largest=False)
        return half, self.places.gather(1, at)

    def short(self) -> Int[Tensor, " n"]:
        """The rows in which fewer than `wide` were smaller than their bound."""
        return (self.counts < self.wide).nonzero()[:, 0]

    def _smaller(self, block: numpy.ndarray) -> numpy.ndarray:
        """Which numbers of a block, counted through, are below their row's bound; NumPy is five times as fast here."""
        if self.smaller.size < block.size:
            self.smaller = numpy.empty(block.size, bool)
        smaller = self.smaller[: block.size].reshape(block.shape)
        return numpy.flatnonzero(numpy.less(block, self.bounds.numpy(), out=smaller))

    def _merge(self, block: Float[Tensor, "N S"], first: int) -> None:
        """Keep the smallest of what is there and of a whole block."""
        places = torch.arange(first, first + block.shape[1]).expand_as(block)
        self._keep(torch.cat([self.half, block], 1), torch.cat([self.places, places], 1))

    def _keep(self, half: Float[Tensor, "N n"], places: Int[Tensor, "N n"]) -> None:
        """Keep the smallest of these, none beyond its row's bound: others like it were left out."""
        half, at = half.topk(self.wide, largest=False)
        half = half.masked_fill(half > self.bounds, torch.inf)
        places = places.gather(1, at).masked_fill(half == torch.inf, -1)
        self.half = F.pad(half, (0, self.room - self.wide), value=torch.inf)
        self.places = F.pad(places, (0, self.room - self.wide), value=-1)
        self.counts = (half < torch.inf).sum(1)
        self.bounds = half[:, -1:].minimum(self.bounds)
        self.unbound = bool(self.bounds.isinf().any())
