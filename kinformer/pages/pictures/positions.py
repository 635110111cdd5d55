"""The vectors that stand for positions: a line for each position, a column for each number."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.position import Position
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A position's table, from its least number, white, to its greatest."""
    if isinstance(example, Position):
        table = example(torch.arange(length or CELLS)[None])[0].detach().float()
        level = (table - table.min()) / (table.max() - table.min()).clamp_min(1e-9)
        names = [[str(n) for n in range(size)] for size in table.shape]
        panel = shades("", level, *names)
        note = f"from {table.min():.2g}, the palest, to {table.max():.2g}"
        yield Picture("the vector of each position", (), (panel,), line="position", column="number", note=note)
