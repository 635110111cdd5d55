"""Dilated: query i reads key j where (i - j) mod dilation = 0 and |i - j| <= window * dilation."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.dilated import Dilated
from tests.nn.patterns.compare import Reads, compare


def reads(window: int, dilation: int) -> Reads:
    return lambda b, h, i, j: (i - j) % dilation == 0 and abs(i - j) <= window * dilation


@pytest.mark.parametrize(("window", "dilation"), [(2, 3), (3, 1), (0, 2), (1, 4)])
def test_a_query_reads_a_window_with_gaps(window: int, dilation: int) -> None:
    compare(Dilated(window, dilation), reads(window, dilation))


class Gaps(Dilated):
    """Counts the gaps between two keys, as the paper's tables do, instead of their distance."""

    @property
    def expression(self) -> Pattern:
        return Dilated(self.window, self.dilation + 1).expression


def test_a_dilation_that_counts_gaps_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 3"):
        compare(Gaps(2, 3), reads(2, 3))
