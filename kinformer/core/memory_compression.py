"""Compression: the reduction of the older states of a memory to fewer states."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class Slots(NamedTuple):
    """Hidden states of a memory and their positions.

    x: the states.
    pos: their positions, -1 at empty slots.
    """

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]


class Compression(nn.Module, KeywordHints, ABC):
    """Base class of maps from `rate` consecutive states of a memory to one state.

    rate: the number of states per compressed state.
    d: the width of a state; None for any width.
    watches: True if `forward` needs the attention that each state received.
    """

    rate: int
    d: int | None = None
    watches: bool = False

    @abstractmethod
    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        """Return the S / rate compressed states, in order; a state with position -1 is 0.

        `used` is the attention that each state received so far, averaged over heads and queries.
        """
