"""What the task of a row adds to its scores."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.nn.biases.camtl import ConditionalBlocks
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades

TASKS = 4


@torch.no_grad()
def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The blocks of the lowest layer that knows tasks; a panel for each."""
    for part in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(part, ConditionalBlocks):
            size = min(length or part.length, part.length)
            added = torch.stack([matrix(part, task, size) for task in range(min(TASKS, len(part.embedding.weight)))])
            cells = min(CELLS, size)
            level = F.adaptive_max_pool2d(added.abs(), cells)  # [tasks R C]
            names = [str(n * size // cells) for n in range(cells)]
            level = level / level.max().clamp_min(1e-30)
            panels = tuple(shades(f"task {n}", one, names, names) for n, one in enumerate(level))
            note = f"sizes, of the greatest; {size} positions in blocks of {part.size}; before any training"
            yield Picture(f"{type(part).__name__}: what is added to scores", (), panels, note=note)
            return


def matrix(part: ConditionalBlocks, task: int, size: int) -> Float[Tensor, "T T"]:
    """M of a task, for a row of so many positions."""
    pos = torch.arange(size)
    rows = part.rows(torch.full((1, 1, size), task), pos[None, None])[0, 0]  # [T n], a row of the block of each
    key = pos // part.size * part.size
    found = rows.new_zeros(size, max(size, int(key[-1]) + part.size))
    return found.scatter(1, key[:, None] + torch.arange(rows.shape[1]), rows)[:, :size]
