"""Aggregation: how heads become one vector."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Aggregation(nn.Module, ABC):
    """What each head read, joined into one vector per token; it sees positions, so that it can leave padding out."""

    @abstractmethod
    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...
