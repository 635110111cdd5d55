"""Band: query i reads key j where i - left <= j <= i + right."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.band import Band
from tests.nn.patterns.compare import Reads, compare


def reads(left: int, right: int) -> Reads:
    return lambda b, h, i, j: i - left <= j <= i + right


@pytest.mark.parametrize(("left", "right"), [(3, 3), (3, 1), (0, 5), (4, -1), (-2, 3), (0, 0)])
def test_a_query_reads_its_window(left: int, right: int) -> None:
    compare(Band(left, right), reads(left, right))


def test_the_window_is_as_wide_on_the_right_unless_given() -> None:
    compare(Band(2), reads(2, 2))


class OneShort(Band):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k) & (q - k < self.left)


def test_a_window_that_is_one_short_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 3 and key 0"):
        compare(OneShort(3), reads(3, 3))
