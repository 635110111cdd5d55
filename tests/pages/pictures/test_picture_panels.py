"""Panels: how many positions a cell is, and what cells show."""

import pytest
import torch

from kinformer.pages.pictures.support.picture_panels import CELLS, grid, span


@pytest.mark.parametrize("longest_one", [1, 8, 9, 64, 100, 500])
def test_a_window_never_fills_its_drawing(longest_one: int) -> None:
    size, step = span(longest_one, None, CELLS)
    assert size == CELLS * step and (3 * longest_one <= size or size >= 2048)
    assert step == 1 or 3 * longest_one > size // 2


def test_a_cell_says_how_many_of_its_pairs_are_read() -> None:
    kind = torch.zeros(5, 5, dtype=torch.long)
    kind[0, 0], kind[0, 1], kind[1, 0], kind[4, 4] = 1, 2, 2, 1
    panel = grid("", kind, 2)
    assert panel.kind.tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 1]] and panel.level[0, 0] == 0.75
    assert panel.level[2, 2] == 1 and panel.rows == ("0", "2", "4")
