"""Dilated: a sliding window with gaps."""

from dataclasses import dataclass

from kinformer.core.checks import at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.patterns.band import Band
from kinformer.patterns.strided import Strided


@dataclass(frozen=True)
class Dilated(Spelled):
    """(i - j) mod dilation = 0 and |i - j| <= window * dilation: a window that sees further at the same cost.

    window: keys on each side.
    dilation: the distance between two of them.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    window: int
    dilation: int

    def __post_init__(self) -> None:
        at_least("Dilated.window", self.window, 0)
        at_least("Dilated.dilation", self.dilation, 1)

    @property
    def expression(self) -> Pattern:
        return Band(self.window * self.dilation) & Strided(self.dilation)


EXAMPLES = (Dilated(2, 3), Dilated(3, 1))
