"""Grid: query i reads the places at most so many rows and columns away from its block of a picture."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.grid import Grid
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
    compare(Grid(width, rows, columns, block), reads(width, rows, columns, block))


def test_without_blocks_rows_and_columns_are_near() -> None:
    compare(Grid(5, 1, 2), lambda b, h, i, j: abs(i // 5 - j // 5) <= 1 and abs(i % 5 - j % 5) <= 2)


class Flat(Grid):
    """Counts columns along the text, where the end of a row touches the start of the next row."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k) | (k - q == 1)


def test_the_next_row_beside_the_end_of_a_row_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 4 and key 5"):
        compare(Flat(5, 0, 1), reads(5, 0, 1, (1, 1)))
