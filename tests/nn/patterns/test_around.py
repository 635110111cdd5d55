"""Around: the places of a picture around the block of a query, as one pattern with claims of its own."""

import pytest

from kinformer.nn.patterns.grid import _Around
from tests.nn.patterns.compare import Reads, compare
from tests.nn.patterns.pictures import is_around

Size = tuple[int, int]


def reads(width: int, rows: int, columns: int, block: Size) -> Reads:
    return lambda b, h, i, j: is_around(i, j, width, block, (rows, columns))


@pytest.mark.parametrize(
    ("width", "rows", "columns", "block"),
    [(5, 1, 2, (1, 1)), (4, 2, 0, (1, 1)), (2, 0, 3, (1, 1)), (6, 1, 1, (2, 3)), (9, 1, 0, (1, 3))],
)
def test_a_query_reads_the_places_around_its_block(width: int, rows: int, columns: int, block: Size) -> None:
    compare(_Around(width, rows, columns, block), reads(width, rows, columns, block))


class OneSlotLess(_Around):
    def capacity(self, length: int) -> int:
        return super().capacity(length) - (length == 12)


def test_one_slot_too_few_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"capacity\(12\)"):
        compare(OneSlotLess(6, 1, 1, (2, 3)), reads(6, 1, 1, (2, 3)))
