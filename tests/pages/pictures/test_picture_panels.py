"""Panels: how many positions a cell is, and what cells show."""

import pytest
import torch

from kinformer.nn.patterns.strided import Strided
from kinformer.pages.pictures import who_reads
from kinformer.pages.pictures.support.picture_panels import CELLS, grid, span


@pytest.mark.parametrize("longest_one", [1, 8, 9, 64, 100, 500])
def test_a_window_never_fills_its_drawing(longest_one: int) -> None:
    size, step = span(longest_one, None, CELLS)
    assert size == CELLS * step and (3 * longest_one <= size or size >= 2048)
    assert step == 1 or 3 * longest_one > size // (3 if longest_one % step == 0 else 2)


def test_a_stride_is_drawn_by_cells_that_divide_it() -> None:
    assert [span(stride, None, CELLS)[1] for stride in (30, 64, 100, 9)] == [5, 8, 20, 3]
    (picture,) = who_reads.pictures(Strided(30), None)
    (panel,) = picture.panels
    at = torch.arange(len(panel.kind))
    assert torch.equal(panel.kind > 0, (at[:, None] - at) % 6 == 0)  # cells of 5: stripes and no checkerboard


def test_a_cell_says_how_many_of_its_pairs_are_read() -> None:
    kind = torch.zeros(5, 5, dtype=torch.long)
    kind[0, 0], kind[0, 1], kind[1, 0], kind[4, 4] = 1, 2, 2, 1
    panel = grid("", kind, 2)
    assert panel.kind.tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 1]] and panel.level[0, 0] == 0.75
    assert panel.level[2, 2] == 1 and panel.rows == ("0", "2", "4")
