"""Image1D: query i reads key j <= i of its block and of the memory before that block."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.segment import Segment
from kinformer.nn.patterns.image_1d import Image1D
from tests.nn.patterns.compare import Reads, compare


def reads(block: int, memory: int) -> Reads:
    return lambda b, h, i, j: i // block * block - memory <= j <= i


@pytest.mark.parametrize(("block", "memory"), [(4, 3), (3, 0), (2, 5)])
def test_a_query_reads_its_block_and_the_memory_before_it(block: int, memory: int) -> None:
    compare(Image1D(block, memory), reads(block, memory))


class Ahead(Image1D):
    @property
    def expression(self) -> Pattern:
        return Segment(self.block, self.memory)


def test_a_missing_causal_mask_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 1"):
        compare(Ahead(4, 3), reads(4, 3))
