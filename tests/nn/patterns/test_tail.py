"""Tail: keys that stand at first[b] or later are read by all queries, and queries there read all keys."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.tail import Tail, TailKeys, TailRows
from tests.nn.patterns.compare import Reads, compare

FIRST = [11, 4]
DEFINITIONS: list[tuple[type[Pattern], Reads]] = [
    (TailKeys, lambda b, h, i, j: j >= FIRST[b]),
    (TailRows, lambda b, h, i, j: i >= FIRST[b]),
    (Tail, lambda b, h, i, j: i >= FIRST[b] or j >= FIRST[b]),
]


@pytest.mark.parametrize(("kind", "reads"), DEFINITIONS, ids=["keys", "rows", "both"])
def test_the_end_of_each_row_is_global(kind: type[Pattern], reads: Reads) -> None:
    compare(kind(torch.tensor(FIRST)[:, None]), reads, rows=2)


class FirstRow(TailKeys):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(0, h, q, k)


def test_the_end_of_another_row_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 4 of row 1"):
        compare(FirstRow(torch.tensor(FIRST)[:, None]), DEFINITIONS[0][1], rows=2)
