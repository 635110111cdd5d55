"""Aggregation: the map from the outputs of all heads to one vector."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Aggregation(nn.Module, ABC):
    """A map from the outputs of all heads to one vector per token.

    It gets the positions, so that it can leave out padding.
    """

    @abstractmethod
    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...
