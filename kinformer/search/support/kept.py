"""Kept: the smallest numbers of rows that come block by block, without sorting each block."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

GROUPS = 256  # of a block's columns: most hold nothing that is small enough, and are looked at by their minimum alone
SPARSE = 4  # groups for each that is looked into, at least; else the whole block is looked through


class Nearest:
    """For each row the `wide` smallest numbers so far, none NaN, and where they came from; inf and -1 for fewer.

    What is smaller than the `wide`-th smallest of some time ago is put behind, and now and then the smallest are kept.
    """

    def __init__(self, rows: int, wide: int):
        self.wide, self.room = wide, 2 * wide + 64
        self.half = torch.full((rows, self.room), torch.inf)
        self.places = torch.full((rows, self.room), -1)
        self.counts = torch.zeros(rows, dtype=torch.long)
        self.worst = torch.full((rows, 1), torch.inf)

    def add(self, block: Float[Tensor, "N S"], first: int) -> None:
        """Look at the numbers of some places in order, `first` of them first."""
        if not block.numel():
            return
        if bool(self.worst.isinf().any()):
            self._merge(block, first)
            return
        rows, columns = self._smaller(block)
        if not len(rows):
            return
        counts = rows.bincount(minlength=len(block))
        if int((self.counts + counts).amax()) > self.room:
            self._keep(self.half, self.places)
            if int(counts.amax()) > self.room - self.wide:
                self._merge(block, first)
                return
        slots = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows] + self.counts[rows]
        self.half[rows, slots], self.places[rows, slots] = block[rows, columns], columns + first
        self.counts += counts

    def settled(self) -> tuple[Float[Tensor, "N w"], Int[Tensor, "N w"]]:
        """The smallest numbers of each row, in order, and their places."""
        half, at = self.half.topk(self.wide, largest=False)
        return half, self.places.gather(1, at)

    def _smaller(self, block: Float[Tensor, "N S"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """The rows, in order, and columns of the numbers that are below their row's bound."""
        if block.shape[1] % GROUPS:
            return (block < self.worst).nonzero(as_tuple=True)  # type: ignore[return-value]
        grouped = block.unflatten(1, (-1, GROUPS))  # a group is every 256th column: minima are of whole vectors
        rows, groups = (grouped.amin(1) < self.worst).nonzero(as_tuple=True)
        if len(rows) * SPARSE > len(block) * GROUPS:
            return (block < self.worst).nonzero(as_tuple=True)  # type: ignore[return-value]
        which, member = (grouped[rows, :, groups] < self.worst[rows]).nonzero(as_tuple=True)
        return rows[which], member * GROUPS + groups[which]

    def _merge(self, block: Float[Tensor, "N S"], first: int) -> None:
        """Keep the smallest of what is there and of a whole block."""
        places = torch.arange(first, first + block.shape[1]).expand_as(block)
        self._keep(torch.cat([self.half, block], 1), torch.cat([self.places, places], 1))

    def _keep(self, half: Float[Tensor, "N n"], places: Int[Tensor, "N n"]) -> None:
        """Keep the smallest of these."""
        half, at = half.topk(self.wide, largest=False)
        places = places.gather(1, at).masked_fill(half == torch.inf, -1)
        self.half = F.pad(half, (0, self.room - self.wide), value=torch.inf)
        self.places = F.pad(places, (0, self.room - self.wide), value=-1)
        self.counts.fill_(self.wide)
        self.worst = half[:, -1:].clone()
