"""Dilated: a sliding window with gaps between its keys."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided


@dataclass(frozen=True)
class Dilated(Spelled):
    """Sliding window with gaps: with the same number of keys it reaches further than `Band`.

    (i - j) mod dilation = 0 and |i - j| <= window * dilation

    Choose it for some heads, beside heads that read all near tokens. In the upper layers of the paper two heads have
    it, as in `Heads(Dilated(32, 2), Dilated(32, 2), Band(32), Band(32))`. A decoder uses `Causal() & Dilated(window,
    dilation)`.

    window: number of keys on each side.
    dilation: distance between neighbouring keys, in positions; 1 leaves no gaps.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1;
    'dilated window' in Lin et al., 2021, arXiv:2106.04554, section 4.1.1.

    Differences: the paper's tables and the survey count the positions in a gap, one less than `dilation`.
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
