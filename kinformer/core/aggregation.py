"""Aggregation: how heads become one vector."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn


class Aggregation(nn.Module, ABC):
    """What each head read, joined into one vector per token."""

    @abstractmethod
    def forward(self, y: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T D"]: ...
