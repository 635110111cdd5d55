"""Blocks: a given table of blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Blocks(Pattern):
    """Queries of block n read the key blocks table[n]; beyond the table, nothing.

    For a layout that was drawn elsewhere (a checkpoint's).

    `size` is the block's width in positions. Source: block-sparse attention as in Zaheer et al., 2020,
    arXiv:2007.14062, appendix D.
    """

    table: tuple[tuple[int, ...], ...]
    size: int = 1

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = q // self.size, k // self.size
        found = torch.as_tensor((row < 0) & (column < 0))
        for n, blocks in enumerate(self.table):
            for block in blocks:
                found = found | ((row == n) & (column == block))
        return found

    def reach(self) -> tuple[float, float]:
        steps = [n - block for n, blocks in enumerate(self.table) for block in blocks]
        slack = self.size - 1
        return max([0, *(step * self.size + slack for step in steps)]), max(
            [0, *(slack - step * self.size for step in steps)]
        )


EXAMPLES = (Blocks(((0,), (0, 1), (2, 0), (1,)), size=3),)
