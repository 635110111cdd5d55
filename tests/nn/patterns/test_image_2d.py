"""Image2D: query i reads what was generated up to it in its block, and in the memory above and beside it."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.grid import Grid
from kinformer.nn.patterns.image_2d import Image2D
from tests.nn.patterns.compare import Reads, compare
from tests.nn.patterns.pictures import is_around

Size = tuple[int, int]


def reads(width: int, block: Size, memory: Size) -> Reads:
    return lambda b, h, i, j: j <= i and is_around(i, j, width, block, memory)


@pytest.mark.parametrize(
    ("width", "block", "memory"), [(6, (2, 3), (1, 1)), (4, (3, 2), (2, 5)), (8, (2, 2), (2, 2)), (4, (1, 4), (0, 0))]
)
def test_a_query_reads_its_block_and_what_lies_around_it(width: int, block: Size, memory: Size) -> None:
    compare(Image2D(width, block, memory), reads(width, block, memory))


class Transposed(Image2D):
    @property
    def expression(self) -> Pattern:
        return Causal() & Grid(self.width, *reversed(self.memory), self.block)


def test_rows_for_columns_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 6 and key 2"):
        compare(Transposed(6, (2, 3), (0, 1)), reads(6, (2, 3), (0, 1)))
