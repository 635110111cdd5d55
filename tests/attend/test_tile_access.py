"""What tiles add up to, where nothing is yet; and how large those of a mask are."""

import pytest
import torch

from kinformer.attend.plan_maker import plan_of_runs
from kinformer.attend.plan_sizes import PlanSizes
from kinformer.attend.position_runs import PositionRun, RunPair
from kinformer.attend.tile_access import TileSum, add
from kinformer.attend.tile_plan import BlockTable, StridedTiles
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens

CALLS = {
    "windows": [StridedTiles(0, 4), StridedTiles(0, 8, 3, 4), StridedTiles(12, 7)],
    "windows of queries": [StridedTiles(0, 8, 3, 4), StridedTiles(12, 7), StridedTiles(16, 3)],
    "pieces": [StridedTiles(0, 4, 3, 4), StridedTiles(12, 6)],
    "the last ones first": [StridedTiles(8, 8), StridedTiles(0, 8)],
    "tiles that skip some": [StridedTiles(0, 4, 2, 8), StridedTiles(4, 4, 2, 8)],
    "two tiles far into each other": [StridedTiles(0, 6, 2, 2), StridedTiles(3, 5)],
    "residues": [StridedTiles(0, 4, 3, 1, 3)],
    "blocks by number behind tiles": [StridedTiles(0, 8), BlockTable(torch.tensor([[0, 3], [1, 0]]), 4, 19)],
    "none": [],
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_fresh_sum_is_one_that_began_with_zeros(kind: str) -> None:
    expected, actual = torch.zeros(2, 3, 19, 2), torch.full((2, 3, 19, 2), torch.nan)
    into = TileSum(actual, True)
    for call in CALLS[kind]:
        by_row = call.many > 1 or isinstance(call, BlockTable)
        for rows in (slice(0, 1), slice(1, 2)) if by_row else (slice(0, 2),):
            added = torch.randn(call.many if by_row else 2, 3, call.size, 2)
            add(expected, call, rows, added)
            into.add(call, rows, added)
    into.end()
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("pattern", [~Band(50), Heads(Causal(), ~Band(50)), Full() & ~Tokens(4)], ids=str)
def test_a_mask_is_never_of_all_pairs(pattern: Pattern) -> None:
    row, length = PositionRun(0, 8192), 8192
    plan = plan_of_runs(pattern, RunPair(row, row), PlanSizes(1, 2, 2, 0, 16), torch.device("cpu"))
    masked = [call for stage in plan.stages for call in stage.calls if call.where is not None and not call.causal]
    assert masked and max(call.q.size * call.k.size for call in masked) <= length**2 / 8
