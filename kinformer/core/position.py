"""Position: encodings of absolute positions, added to embeddings. Rotation: encodings by rotation."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Position(nn.Module, ABC):
    """A vector for each absolute position, 0 at padding.

    length: the number of positions in its table; None if it has no limit.
    """

    length: int | None = None

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...


class Rotation(nn.Module, ABC):
    """A rotation of queries or keys by their position, so that their product depends on the distance."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]: ...
