"""Axial: positions that are the same along every axis but one, and what rows and columns in turn reach."""

import pytest
import torch

from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.nn.patterns.axial import Axial
from tests.nn.patterns.compare import Reads, compare

ROWS, COLUMNS = 4, 5
SHAPE = f"({ROWS}, {COLUMNS})"


def place(position: int, shape: tuple[int, ...]) -> list[int]:
    """Where a position stands along each axis, in raster order."""
    coordinates: list[int] = []
    for size in reversed(shape):
        coordinates.insert(0, position % size)
        position //= size
    return coordinates


def reads(shape: tuple[int, ...], axis: int) -> Reads:
    def other_axes(position: int) -> list[int]:
        return [at for n, at in enumerate(place(position, shape)) if n != axis]

    return lambda b, h, i, j: other_axes(i) == other_axes(j)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 6), 0), ((3, 6), 1), ((3, 3, 2), 0), ((3, 3, 2), 1), ((3, 3, 2), 2), ((7,), 0)]
)
def test_a_query_reads_along_one_axis(shape: tuple[int, ...], axis: int) -> None:
    size = torch.Size(shape).numel()
    compare(Axial(shape, axis), reads(shape, axis), length=size, size=size)


class NextAxis(Axial):
    @property
    def expression(self) -> Pattern:
        return Axial(self.shape, 1 - self.axis).expression


def test_the_other_axis_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 1"):
        compare(NextAxis((3, 6), 0), reads((3, 6), 0), length=18, size=18)


def reached(*expressions: str) -> torch.Tensor:
    """What a place knows after layers of these patterns, of which each also hands on what it knew."""
    reachable = torch.eye(ROWS * COLUMNS, dtype=torch.bool)
    for expression in expressions:
        reads = parse(expression).matrix(ROWS * COLUMNS) | torch.eye(ROWS * COLUMNS, dtype=torch.bool)
        reachable = (reads.double() @ reachable.double()) > 0
    return reachable


def test_a_row_and_a_column_reach_all_and_with_a_mask_nothing_further_right() -> None:
    assert reached(f"Axial({SHAPE}, 1)", f"Axial({SHAPE}, 0)").all()
    at = torch.arange(ROWS * COLUMNS)
    row, column = at // COLUMNS, at % COLUMNS
    masked = reached(*[f"Causal() & Axial({SHAPE}, {axis})" for axis in (1, 0, 1, 0)])
    assert torch.equal(masked, (row[:, None] >= row) & (column[:, None] >= column))
    assert torch.equal(
        reached(*[f"Causal() & (Axial({SHAPE}, 0) | Band({COLUMNS}))"] * 2), masked.new_ones(20, 20).tril()
    )
