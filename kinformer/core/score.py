"""Score: how a query and a key are multiplied."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.layer import Want
from kinformer.core.request import Request


class Score(nn.Module, ABC):
    """What makes the scores of all pairs, before a bias changes them and a pattern shuts pairs out.

    The product of query and key is `core/scores/product.py`; a table that a token predicts, or scores from the block
    beneath, are others. `wants` names what it must find in `request.below`.
    """

    wants: tuple[Want, ...] = ()

    @abstractmethod
    def forward(self, request: Request) -> Float[Tensor, "B H T S"]: ...

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What it wants from the layer's input for each query, by name."""
        return {}

    def start(self, spec: StateSpec) -> None:
        """Raises `NoState` with advice where scores of a part of a row are not those of the whole."""
