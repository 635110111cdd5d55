"""Star: position 0 is the relay of all; satellites read their neighbours, in a ring where their number is given."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.star import Star
from tests.nn.patterns.compare import Reads, compare


def reads_row(b: int, h: int, i: int, j: int) -> bool:
    return i == 0 or j == 0 or abs(i - j) <= 1


def reads_ring(n: int) -> Reads:
    def reads(b: int, h: int, i: int, j: int) -> bool:
        closes = {i, j} == {1, n}
        return max(i, j) <= n and (reads_row(b, h, i, j) or closes)

    return reads


def test_an_open_row_reads_its_neighbours_and_the_relay() -> None:
    compare(Star(), reads_row)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_a_ring_is_closed(n: int) -> None:
    compare(Star(n), reads_ring(n))


class Open(Star):
    @property
    def expression(self) -> Pattern:
        return Star().expression


def test_a_ring_that_stays_open_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 7"):
        compare(Open(6), reads_ring(6))
