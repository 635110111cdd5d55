"""Marked: keys that all queries read, and queries that read all keys, where a mask says so; nothing beyond the mask."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.marked import Marked, MarkedKeys, MarkedRows
from tests.nn.patterns.compare import Reads, compare

MASK = [[i in (2, 3, 4, 9) for i in range(17)], [i in (0, 3, 4, 16) for i in range(17)]]


def is_marked(b: int, position: int) -> bool:
    return position < len(MASK[b]) and MASK[b][position]


DEFINITIONS: list[tuple[type[Pattern], Reads]] = [
    (MarkedKeys, lambda b, h, i, j: is_marked(b, j)),
    (MarkedRows, lambda b, h, i, j: is_marked(b, i)),
    (Marked, lambda b, h, i, j: is_marked(b, i) or is_marked(b, j)),
]


@pytest.mark.parametrize(("kind", "reads"), DEFINITIONS, ids=["keys", "rows", "both"])
def test_marked_tokens_are_global(kind: type[Pattern], reads: Reads) -> None:
    compare(kind(torch.tensor(MASK)), reads, length=20, rows=2)


class Repeated(MarkedKeys):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, torch.as_tensor(k) % self.mask.shape[1])


def test_marks_beyond_the_mask_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 19 of row 0"):
        compare(Repeated(torch.tensor(MASK)), DEFINITIONS[0][1], rows=2)
