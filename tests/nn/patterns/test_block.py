"""Block: query i reads key j where i // size - back <= j // size <= i // size + ahead."""

import pytest

from kinformer.nn.patterns.block import Block
from tests.nn.patterns.compare import Reads, compare


def reads(size: int, back: int, ahead: int) -> Reads:
    return lambda b, h, i, j: i // size - back <= j // size <= i // size + ahead


@pytest.mark.parametrize(
    ("size", "back", "ahead"), [(4, 0, 0), (3, 1, 0), (2, 1, 1), (4, 1, 2), (3, -1, 2), (3, 2, -1)]
)
def test_a_query_reads_blocks_around_its_own(size: int, back: int, ahead: int) -> None:
    compare(Block(size, back, ahead), reads(size, back, ahead))


class HalfPeriod(Block):
    def period(self) -> int | None:
        return self.size // 2


def test_a_period_that_is_too_short_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"period\(\) is 2"):
        compare(HalfPeriod(4), reads(4, 0, 0))
