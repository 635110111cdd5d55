"""Compression: how older states of a memory become fewer."""

from abc import ABC, abstractmethod
from typing import NamedTuple

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
