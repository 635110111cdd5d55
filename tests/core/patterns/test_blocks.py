"""Blocks: queries of block n read the key blocks table[n]; beyond the table nothing."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.blocks import Blocks
from tests.nn.patterns.compare import Reads, compare

Layout = tuple[tuple[int, ...], ...]


def reads(table: Layout, size: int) -> Reads:
    return lambda b, h, i, j: i // size < len(table) and j // size in table[i // size]


@pytest.mark.parametrize(
    ("table", "size"),
    [(((0,), (0, 1), (2, 0), (1,)), 3), (((1, 2), (2,), (), (4,)), 2), (((0,), (2, 1)), 3), (((), (1,)), 3), ((), 3)],
)
def test_a_block_of_queries_reads_the_blocks_of_its_row_of_the_table(table: Layout, size: int) -> None:
    compare(Blocks(table, size), reads(table, size))


@pytest.mark.parametrize(("table", "size"), [(((0,), (0, 1), (2, 0), ()), 3), (((), ()), 2)])
def test_blocks_by_comparisons_alone_are_the_same_set(table: Layout, size: int) -> None:
    """The compiler must not make a table."""
    at = torch.arange(20)
    pattern = Blocks(table, size)
    assert torch.equal(
        pattern._compare_blocks(at[:, None] // size, at[None] // size).expand(20, 20), pattern.matrix(20)
    )


class Transposed(Blocks):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, k, q)


def test_a_transposed_table_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 3"):
        compare(Transposed(((0,), (0, 1)), 3), reads(((0,), (0, 1)), 3))
