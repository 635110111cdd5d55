"""Fixed: query i reads key j of its own block, and the summary positions near the end of every block."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.fixed import Fixed
from tests.nn.patterns.compare import Reads, compare


def reads(block: int, summary: int, offset: int) -> Reads:
    def is_summary(j: int) -> bool:
        return block - offset - summary <= j % block < block - offset

    return lambda b, h, i, j: j // block == i // block or is_summary(j)


@pytest.mark.parametrize(("block", "summary", "offset"), [(4, 1, 0), (5, 2, 0), (5, 2, 1)])
def test_a_query_reads_its_block_and_the_summaries(block: int, summary: int, offset: int) -> None:
    compare(Fixed(block, summary, offset), reads(block, summary, offset))


class WithoutSummary(Fixed):
    @property
    def expression(self) -> Pattern:
        return Block(self.block)


def test_missing_summaries_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 7"):
        compare(WithoutSummary(4, 1), reads(4, 1, 0))
