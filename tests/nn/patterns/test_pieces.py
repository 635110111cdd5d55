"""Pieces: a pattern for each direction between n global tokens and the long text behind them, each counted from 0."""

from collections.abc import Callable

import pytest
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from tests.nn.patterns.compare import Reads, compare

Read = Callable[[int, int], bool]


def reads_all(i: int, j: int) -> bool:
    return True


def reads(n: int, g2g: Read = reads_all, g2l: Read = reads_all, l2g: Read = reads_all, l2l: Read = reads_all) -> Reads:
    def is_read(b: int, h: int, i: int, j: int) -> bool:
        if i < n:
            return g2g(i, j) if j < n else g2l(i, j - n)
        return l2g(i - n, j) if j < n else l2l(i - n, j - n)

    return is_read


CASES = {
    "all": (Pieces(3), reads(3)),
    "none global": (Pieces(0, l2l=Band(2)), reads(0, l2l=lambda i, j: abs(i - j) <= 2)),
    "four patterns": (
        Pieces(3, Causal(), Band(2), Band(0, 1), Strided(2)),
        reads(
            3,
            g2g=lambda i, j: j <= i,
            g2l=lambda i, j: abs(i - j) <= 2,
            l2g=lambda i, j: i <= j <= i + 1,
            l2l=lambda i, j: (i - j) % 2 == 0,
        ),
    ),
    "ahead": (
        Pieces(3, Band(-2, 2), Band(1, 2), Band(-5, 7), Band(-2, 3)),
        reads(
            3,
            g2g=lambda i, j: j == i + 2,
            g2l=lambda i, j: i - 1 <= j <= i + 2,
            l2g=lambda i, j: i + 5 <= j <= i + 7,
            l2l=lambda i, j: i + 2 <= j <= i + 3,
        ),
    ),
    "near": (
        Pieces(2, g2l=Band(1, 3), l2g=Tokens(1), l2l=Band(2)),
        reads(2, g2l=lambda i, j: i - 1 <= j <= i + 3, l2g=lambda i, j: j < 1, l2l=lambda i, j: abs(i - j) <= 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_piece_counts_from_its_own_start(case: str) -> None:
    compare(*CASES[case])


class Absolute(Pieces):
    """Counts long tokens from the start of the row, global tokens included."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k) & ((q >= self.n) | (k < self.n) | self.g2l(b, h, q, k))


def test_absolute_positions_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 4"):
        compare(Absolute(2, g2l=Band(1, 3), l2g=Tokens(1), l2l=Band(2)), CASES["near"][1])
