"""Position: absolute position encodings, added to what a model embeds; Rotation: those that turn queries and keys."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Position(nn.Module, ABC):
    """A vector for each absolute position; 0 at padding. `length` is where a table of them ends, None for no end."""

    length: int | None = None

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...


class Rotation(nn.Module, ABC):
    """Queries or keys turned by their position, so that their product knows the distance."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]: ...
