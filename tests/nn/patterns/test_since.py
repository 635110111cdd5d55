"""Since: query i reads key j where j >= first[i]; a query beyond the table reads nothing."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.since import Since
from tests.nn.patterns.compare import Reads, compare

GROWING = [[0] * 5 + [5] * 12, [i // 4 * 4 for i in range(17)]]
FALLING = [[4, 0, 2, 1, 7, 7, 3]]


def reads(first: list[list[int]]) -> Reads:
    return lambda b, h, i, j: i < len(first[b]) and j >= first[b][i]


def test_a_query_reads_nothing_before_its_first_key() -> None:
    compare(Since(torch.tensor(GROWING)), reads(GROWING), length=20, rows=2)
    compare(Since(torch.tensor(FALLING)), reads(FALLING), length=10, bounds=("cover",))


class After(Since):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k - 1)


def test_a_first_key_that_is_not_read_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 0 of row 0"):
        compare(After(torch.tensor(GROWING)), reads(GROWING), rows=2)
