"""Blocks: a given table of blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import at_least, whole_numbers
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Blocks(Pattern):
    """Queries of block n read the key blocks table[n]; beyond the table, nothing.

    For a layout that was drawn elsewhere (a checkpoint's).

    table: for each query block, the key blocks that it reads.
    size: positions of a block.

    Source: block-sparse attention as in Zaheer et al., 2020, arXiv:2007.14062, appendix D.
    """

    table: tuple[tuple[int, ...], ...]
    size: int = 1

    def __post_init__(self) -> None:
        at_least("Blocks.size", self.size, 1)
        if not isinstance(self.table, tuple):
            raise ValueError(f"Blocks.table={self.table!r}: give a tuple of tuples of key blocks")
        for n, blocks in enumerate(self.table):
            whole_numbers(f"Blocks.table[{n}]", blocks, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.size, torch.as_tensor(k) // self.size
        if torch.compiler.is_compiling():  # comparisons alone: compiled flex cannot make a table here
            return self._compared(row, column)
        width = max((block + 1 for blocks in self.table for block in blocks), default=0)
        if not width:
            return (row < 0) & (column < 0)
        # one look-up for all pairs, in a table of blocks
        allowed = torch.tensor([[block in blocks for block in range(width)] for blocks in self.table]).to(row.device)
        inside = (row < len(self.table)) & (column < width)
        return allowed[row.clamp(max=len(self.table) - 1), column.clamp(max=width - 1)] & inside

    def _compared(self, row: Tensor, column: Tensor) -> Tensor:
        found = (row < 0) & (column < 0)
        for n, blocks in enumerate(self.table):
            read = column < 0  # of keys alone, so that pairs are touched once a block of queries
            for block in blocks:
                read = read | (column == block)
            found = found | ((row == n) & read)
        return found

    def reach(self) -> tuple[float, float]:
        steps = [n - block for n, blocks in enumerate(self.table) for block in blocks]
        slack = self.size - 1
        return max([0, *(step * self.size + slack for step in steps)]), max(
            [0, *(slack - step * self.size for step in steps)]
        )


EXAMPLES = (Blocks(((0,), (0, 1), (2, 0), (1,)), size=3),)
