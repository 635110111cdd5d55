"""Strided: query i reads key j where (i - j) mod stride = 0."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.strided import Strided
from tests.nn.patterns.compare import Reads, compare


def reads(stride: int) -> Reads:
    return lambda b, h, i, j: (i - j) % stride == 0


@pytest.mark.parametrize("stride", [1, 3, 4])
def test_a_query_reads_every_nth_key(stride: int) -> None:
    compare(Strided(stride), reads(stride))


class Columns(Strided):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, 0, k) & (q >= 0)


def test_columns_that_do_not_move_with_the_query_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 1 and key 0"):
        compare(Columns(3), reads(3))
