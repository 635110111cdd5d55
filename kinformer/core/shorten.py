"""Shorten: fewer keys made of many, before attention reads them."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Keys
from kinformer.core.projection import Projection


class Shorten(nn.Module, ABC):
    """Keys, values and positions in, fewer of them out: pooled, convolved, projected along the row.

    Keys come in the order of their positions, padding last, at positions that all heads share. `group` says that each
    `group` keys that follow one another, counted from the row's first, make one, which stands where the last of them
    does: with it rows can be read in pieces, key by key. None where a key may be of any. `gapless` promises that a row
    without padding gives keys without padding.
    """

    group: int | None = None
    gapless: bool = False

    @abstractmethod
    def forward(self, keys: Keys) -> Keys: ...

    def mix_before_projection(
        self, projection: Projection, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B 1 S"], full: bool
    ) -> Keys | None:
        """What it makes of the keys of x, where x can be mixed before it is projected, and that costs less; else None.

        Asked where there is no `group`. `full` promises that x has no padding.
        """
        return None
