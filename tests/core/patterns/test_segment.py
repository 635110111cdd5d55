"""Segment: query i reads key j where j >= (i // length) * length - memory."""

import pytest

from kinformer.core.patterns.segment import Segment
from tests.nn.patterns.compare import Reads, compare


def reads(length: int, memory: int) -> Reads:
    return lambda b, h, i, j: j >= (i // length) * length - memory


@pytest.mark.parametrize(("length", "memory"), [(4, 3), (3, 0), (5, 9), (1, 2)])
def test_a_query_reads_its_segment_and_the_memory_before_it(length: int, memory: int) -> None:
    compare(Segment(length, memory), reads(length, memory))


class LessMemory(Segment):
    def capacity(self, length: int) -> int:
        return super().capacity(length) - (length > 6)


def test_one_slot_too_few_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"capacity\(7\) is 5, and the least that is enough is 6"):
        compare(LessMemory(4, 3), reads(4, 3))
