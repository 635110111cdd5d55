"""Rows: query i reads every key where i < n, or where i is one of the given positions."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.rows import Rows
from tests.nn.patterns.compare import Reads, compare

Positions = int | tuple[int, ...]


def reads(n: Positions) -> Reads:
    return lambda b, h, i, j: i < n if isinstance(n, int) else i in n


@pytest.mark.parametrize("n", [0, 2, (1, 7), (7, 1, 7)], ids=repr)
def test_a_few_queries_read_all_keys(n: Positions) -> None:
    compare(Rows(n), reads(n))


class Keys(Rows):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, k, q)


def test_keys_instead_of_queries_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 2"):
        compare(Keys(2), reads(2))
