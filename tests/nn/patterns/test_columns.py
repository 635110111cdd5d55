"""Columns: every query reads key j where block - offset - summary <= j mod block < block - offset."""

import pytest

from kinformer.nn.patterns.columns import Columns
from tests.nn.patterns.compare import Reads, compare


def reads(block: int, summary: int, offset: int) -> Reads:
    return lambda b, h, i, j: block - offset - summary <= j % block < block - offset


@pytest.mark.parametrize(("block", "summary", "offset"), [(4, 1, 0), (5, 2, 1), (7, 2, 3)])
def test_all_queries_read_the_summary_of_each_block(block: int, summary: int, offset: int) -> None:
    compare(Columns(block, summary, offset), reads(block, summary, offset))


def test_a_summary_of_whole_blocks_reads_all_keys() -> None:
    compare(Columns(3, 3), reads(3, 3, 0), bounds=("cover",))


def test_an_offset_that_is_one_off_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 1"):
        compare(Columns(5, 2, 2), reads(5, 2, 1))


class OneSlotLess(Columns):
    def capacity(self, length: int) -> int:
        return max(0, super().capacity(length) - 1)


def test_one_slot_too_few_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"capacity\(4\) is 0"):
        compare(OneSlotLess(4, 1), reads(4, 1, 0))
