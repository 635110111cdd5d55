"""Aggregation: the map from the outputs of all heads to one vector."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class Aggregation(nn.Module, KeywordHints, ABC):
    """Base class of maps from the outputs of all heads to one vector per token.

    A subclass writes `forward`. It gets the positions too, so that it can leave out padding (position -1).
    """

    @abstractmethod
    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...
