"""OwnSegment: pairs of the named pieces, from global or long to global or long, read their own segment alone."""

import pytest
import torch

from kinformer.nn.patterns.own_segment import OwnSegment
from tests.nn.patterns.compare import Reads, compare

SORTED = [[0, 1, 2] + [0] * 4 + [1] * 6 + [2] * 4, [0, 1, 1] + [0] * 9 + [1] * 5]
SCATTERED = [[2, 0, 1] + [0] * 4 + [2] * 6 + [1, 0, 1, 1]]
Pieces = tuple[str, ...]


def reads(ids: list[list[int]], n: int, pieces: Pieces) -> Reads:
    def is_read(b: int, h: int, i: int, j: int) -> bool:
        piece = f"{'g' if i < n else 'l'}2{'g' if j < n else 'l'}"
        return piece not in pieces or (max(i, j) < len(ids[b]) and ids[b][i] == ids[b][j])

    return is_read


@pytest.mark.parametrize("pieces", [("g2l",), ("l2g", "l2l"), ("g2g", "l2g", "l2l"), ()], ids=repr)
def test_the_named_pieces_read_their_own_segment(pieces: Pieces) -> None:
    compare(OwnSegment(torch.tensor(SORTED), 3, pieces), reads(SORTED, 3, pieces), length=20, rows=2)
    compare(OwnSegment(torch.tensor(SCATTERED), 3, pieces), reads(SCATTERED, 3, pieces), length=20, bounds=("cover",))


def test_the_other_direction_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 7 of row 0"):
        compare(OwnSegment(torch.tensor(SORTED), 3, ("l2g",)), reads(SORTED, 3, ("g2l",)), rows=2)
