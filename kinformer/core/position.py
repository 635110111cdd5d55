"""Position: encodings of absolute positions, added to embeddings. Rotation: encodings by rotation."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class Position(nn.Module, KeywordHints, ABC):
    """Base class of position encodings: a vector for each absolute position, 0 at padding.

    length: the number of positions that the encoding has; None if it has no limit.
    """

    length: int | None = None

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...


class Rotation(nn.Module, KeywordHints, ABC):
    """Base class of rotations of queries and keys by position; their product depends on their distance."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]: ...
