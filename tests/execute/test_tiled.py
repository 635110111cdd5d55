"""What tiles add up to, where nothing is yet."""

import pytest
import torch

from kinformer.execute.support.calls import Table, Tiles
from kinformer.execute.support.tiled import Sum, add

CALLS = {
    "windows": [Tiles(0, 4), Tiles(0, 8, 3, 4), Tiles(12, 7)],
    "windows of queries": [Tiles(0, 8, 3, 4), Tiles(12, 7), Tiles(16, 3)],
    "pieces": [Tiles(0, 4, 3, 4), Tiles(12, 6)],
    "the last ones first": [Tiles(8, 8), Tiles(0, 8)],
    "tiles that skip some": [Tiles(0, 4, 2, 8), Tiles(4, 4, 2, 8)],
    "two tiles far into each other": [Tiles(0, 6, 2, 2), Tiles(3, 5)],
    "residues": [Tiles(0, 4, 3, 1, 3)],
    "blocks by number behind tiles": [Tiles(0, 8), Table(torch.tensor([[0, 3], [1, 0]]), 4, 19)],
    "none": [],
}


@pytest.mark.parametrize("what", CALLS)
def test_a_fresh_sum_is_one_that_began_with_zeros(what: str) -> None:
    wanted, found = torch.zeros(2, 3, 19, 2), torch.full((2, 3, 19, 2), torch.nan)
    into = Sum(found, True)
    for call in CALLS[what]:
        by_row = call.many > 1 or isinstance(call, Table)
        for some in (slice(0, 1), slice(1, 2)) if by_row else (slice(0, 2),):
            one = torch.randn(call.many if by_row else 2, 3, call.size, 2)
            add(wanted, call, some, one)
            into.add(call, some, one)
    into.end()
    torch.testing.assert_close(found, wanted)
