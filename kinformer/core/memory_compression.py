"""Compression: the reduction of the older states of a memory to fewer states."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn


class Slots(NamedTuple):
    """States and their positions.

    x: the states.
    pos: their positions, -1 at empty slots.
    """

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]


class Compression(nn.Module, ABC):
    """A map from `rate` consecutive states to one state.

    rate: the number of states per compressed state.
    d: the width of a state; None for any width.
    watches: True if it needs the attention that each state received.
    """

    rate: int
    d: int | None = None
    watches: bool = False

    @abstractmethod
    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        """Return the S / rate compressed states, in order; x is 0 if its position is -1.

        `used` is the mean attention that each state received.
        """
