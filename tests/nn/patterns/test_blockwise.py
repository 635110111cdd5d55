"""Blockwise: query i reads key j where j // size = permutation[i // size]; nothing beyond the permutation."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.blockwise import Blockwise
from tests.nn.patterns.compare import Reads, compare


def reads(permutation: tuple[int, ...], size: int) -> Reads:
    return lambda b, h, i, j: i // size < len(permutation) and j // size == permutation[i // size]


@pytest.mark.parametrize(("permutation", "size"), [((2, 0, 1), 4), ((0, 1), 5), ((1, 0, 3, 2), 2)])
def test_each_block_reads_the_block_of_the_permutation(permutation: tuple[int, ...], size: int) -> None:
    compare(Blockwise(permutation, size), reads(permutation, size))


class Inverse(Blockwise):
    @property
    def expression(self) -> Pattern:
        order = range(len(self.permutation))
        return Blockwise(tuple(self.permutation.index(n) for n in order), self.size).expression


def test_the_inverse_permutation_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 4"):
        compare(Inverse((2, 0, 1), 4), reads((2, 0, 1), 4))
