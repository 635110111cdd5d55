"""Full: every query reads every key."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.full import Full
from tests.nn.patterns.compare import compare


def reads(b: int, h: int, i: int, j: int) -> bool:
    return True


def test_every_query_reads_every_key() -> None:
    compare(Full(), reads, heads=2)


class NotItself(Full):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k) & (q != k)


def test_a_query_that_does_not_read_itself_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 0"):
        compare(NotItself(), reads)
