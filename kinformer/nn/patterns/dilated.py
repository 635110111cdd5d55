"""Dilated: a sliding window with gaps."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided


@dataclass(frozen=True)
class Dilated(Spelled):
    """(i - j) mod dilation = 0 and |i - j| <= window * dilation: a window that sees further with as many keys.

    `Causal() & Dilated(window, dilation)` in a decoder. The paper gives it to two heads of the upper layers:
    `Heads(Dilated(32, 2), Dilated(32, 2), Band(32), Band(32))`.

    window: keys on each side.
    dilation: the distance between two of them, 1 for none left out; the paper's tables and the survey count the gaps,
        one less.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1;
    'dilated window' in Lin et al., 2021, arXiv:2106.04554, section 4.1.1.
    """

    window: int
    dilation: int

    def __post_init__(self) -> None:
        check_at_least("Dilated.window", self.window, 0)
        check_at_least("Dilated.dilation", self.dilation, 1)

    @property
    def expression(self) -> Pattern:
        return Band(self.window * self.dilation) & Strided(self.dilation)


EXAMPLES = (Dilated(2, 3), Dilated(3, 1))
