"""Tokens: every query reads key j where j < n, or where j is one of the given positions."""

import pytest

from kinformer.nn.patterns.tokens import Tokens
from tests.nn.patterns.compare import Reads, compare

Positions = int | tuple[int, ...]


def reads(n: Positions) -> Reads:
    return lambda b, h, i, j: j < n if isinstance(n, int) else j in n


@pytest.mark.parametrize("n", [0, 2, (1, 7), (7, 1, 7), ()], ids=repr)
def test_all_queries_read_the_tokens(n: Positions) -> None:
    compare(Tokens(n), reads(n))


class Unbounded(Tokens):
    def reach(self) -> tuple[float, float]:
        return super().reach()[0], self.marked_positions[-1] + 1


def test_a_reach_that_is_one_too_far_is_noticed() -> None:
    with pytest.raises(AssertionError, match="and the furthest key is 7 away"):
        compare(Unbounded((1, 7)), reads((1, 7)))
