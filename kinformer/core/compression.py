"""Compression: how older states of a memory become fewer."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Slots(NamedTuple):
    """States and their positions, -1 at empty slots."""

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]


class Compression(nn.Module, ABC):
    """What makes one state of `rate` states that follow one another. `watches` says that it wants to know their use.

    `d` is the width of a state, None where any will do.
    """

    rate: int
    d: int | None = None
    watches: bool = False

    @abstractmethod
    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        """The S / rate compressed states, in order; x is 0 where pos is -1. `used` is the mean attention each got."""


def by_block(x: Tensor, rate: int) -> Tensor:
    """[B S ...] as blocks [B S/rate rate ...]."""
    return x.unflatten(1, (x.shape[1] // rate, rate))


def first_of_block(pos: Int[Tensor, "B S"], rate: int) -> Int[Tensor, "B N"]:
    """The first position of each block, -1 of an empty one."""
    last = torch.iinfo(pos.dtype).max
    first = by_block(pos.masked_fill(pos < 0, last), rate).amin(2)
    return first.masked_fill(first == last, -1)
