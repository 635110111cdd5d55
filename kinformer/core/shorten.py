"""Shorten: a reduction of many keys to fewer before attention reads them."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Keys
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.projection import Projection


class Shorten(nn.Module, KeywordHints, ABC):
    """Base class of maps from keys and values to fewer ones: pooling, convolution or projection.

    A subclass writes `forward`. It gets keys in the order of their positions, with padding last. All heads share the
    positions.

    group: the number of consecutive keys that make one key, counted from the first key of a row. The new key has the
        position of the last of them, and rows can be computed in pieces. None if a new key may depend on any key.
    gapless: a promise that a row without padding gives keys without padding.
    """

    group: int | None = None
    gapless: bool = False

    @abstractmethod
    def forward(self, keys: Keys) -> Keys: ...

    def mix_before_projection(
        self, projection: Projection, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B 1 S"], full: bool
    ) -> Keys | None:
        """Return the shortened keys of x if it is faster to shorten x before its projection, else None.

        Called only if `group` is None. `full` promises that x has no padding.
        """
        return None
