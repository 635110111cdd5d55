"""Axial: what rows and columns in turn reach, without and with a mask of what comes later."""

import torch

from kinformer.core.expression import parse

ROWS, COLUMNS = 4, 5
SHAPE = f"({ROWS}, {COLUMNS})"


def reached(*expressions: str) -> torch.Tensor:
    """What a place knows after layers of these patterns, of which each also hands on what it knew."""
    known = torch.eye(ROWS * COLUMNS, dtype=torch.bool)
    for expression in expressions:
        one = parse(expression).matrix(ROWS * COLUMNS) | torch.eye(ROWS * COLUMNS, dtype=torch.bool)
        known = (one.double() @ known.double()) > 0
    return known


def test_a_row_and_a_column_reach_all_and_with_a_mask_nothing_further_right() -> None:
    assert reached(f"Axial({SHAPE}, 1)", f"Axial({SHAPE}, 0)").all()
    place = torch.arange(ROWS * COLUMNS)
    row, column = place // COLUMNS, place % COLUMNS
    masked = reached(*[f"Causal() & Axial({SHAPE}, {axis})" for axis in (1, 0, 1, 0)])
    assert torch.equal(masked, (row[:, None] >= row) & (column[:, None] >= column))
    assert torch.equal(
        reached(*[f"Causal() & (Axial({SHAPE}, 0) | Band({COLUMNS}))"] * 2), masked.new_ones(20, 20).tril()
    )
