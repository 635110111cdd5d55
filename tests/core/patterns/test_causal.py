"""Causal: query i reads key j where j <= i."""

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.causal import Causal
from tests.nn.patterns.compare import compare


def reads(b: int, h: int, i: int, j: int) -> bool:
    return j <= i


def test_a_query_reads_itself_and_all_before_it() -> None:
    compare(Causal(), reads)


class Strict(Causal):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k + 1)


def test_a_query_that_does_not_read_itself_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 0"):
        compare(Strict(), reads)
