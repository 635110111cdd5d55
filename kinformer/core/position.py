"""Position: absolute position encodings, added to what a model embeds."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Position(nn.Module, ABC):
    """A vector for each absolute position; 0 at padding."""

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...
