"""Document: query i reads key j of the same document; a position beyond the ids reads nothing."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.document import Document
from tests.nn.patterns.compare import Reads, compare

SORTED = [[0] * 4 + [3] * 6 + [1] * 7, [2] * 11 + [0] * 6]
SCATTERED = [[0, 1, 0, 2, 1, 1, 0, 2, 2], [4] * 9]


def reads(ids: list[list[int]]) -> Reads:
    return lambda b, h, i, j: max(i, j) < len(ids[b]) and ids[b][i] == ids[b][j]


def test_documents_do_not_read_each_other() -> None:
    compare(Document(torch.tensor(SORTED)), reads(SORTED), length=20, rows=2)
    compare(Document(torch.tensor(SCATTERED)), reads(SCATTERED), length=12, rows=2, bounds=("cover",))


def test_places_count_from_the_first_token_of_a_document() -> None:
    pos = torch.arange(17).expand(2, -1).clone()
    pos[1, 15:] = -1
    expected = [[*range(4), *range(6), *range(7)], [*range(11), *range(4), -1, -1]]
    assert Document(torch.tensor(SORTED)).positions_in_document(pos).tolist() == expected


class NextKey(Document):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k + 1)


def test_the_document_of_the_next_key_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 3 of row 0"):
        compare(NextKey(torch.tensor(SORTED)), reads(SORTED), rows=2)
