"""Score: the function that gives each pair of query and key a number."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Want
from kinformer.core.request import Request


class Score(nn.Module, KeywordHints, ABC):
    """Base class of scores: a number for each pair, before a bias changes it and a pattern excludes pairs.

    A subclass writes `forward`. Examples are the product of query and key (`core/scores/product.py`), scores that each
    token predicts without keys, and scores from an earlier block.

    wants: names of values from earlier blocks that it must find in `request.below`.
    """

    wants: tuple[Want, ...] = ()

    @abstractmethod
    def forward(self, request: Request) -> Float[Tensor, "B H T S"]: ...

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the further projections of the layer's input that the score needs per query, by name."""
        return {}

    def start(self, spec: StateSpec) -> None:
        """Raise `NoState` with advice if the scores cannot be decoded in steps.

        They cannot if a part of a row gives other scores than the whole row.
        """
