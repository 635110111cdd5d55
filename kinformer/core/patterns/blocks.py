"""Blocks: block-sparse attention with a given table of key blocks."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_whole_numbers
from kinformer.core.pattern import Index, Pattern
from kinformer.core.quote import quote


@dataclass(frozen=True)
class Blocks(Pattern):
    """Block-sparse attention: queries of block n attend to the key blocks with the numbers table[n].

    Choose it for blocks that are given, such as the random blocks of a checkpoint. The pattern `Random` chooses random
    blocks itself. Queries and keys in blocks beyond the table form no pairs.

    table: numbers of the key blocks for each query block; one tuple for each query block.
    size: number of positions in a block.

    Errors: ValueError if the table is not a tuple of tuples of numbers >= 0.
    Source: block-sparse attention as in Zaheer et al., 2020, arXiv:2007.14062, appendix D.
    """

    table: tuple[tuple[int, ...], ...]
    size: int = 1

    def __post_init__(self) -> None:
        check_at_least("Blocks.size", self.size, 1)
        if not isinstance(self.table, tuple):
            raise ValueError(f"Blocks.table={quote(self.table)}: give a tuple of tuples of key blocks")
        for n, blocks in enumerate(self.table):
            check_whole_numbers(f"Blocks.table[{n}]", blocks, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.size, torch.as_tensor(k) // self.size
        if torch.compiler.is_compiling():  # compiled flex cannot create a table here, so only comparisons
            return self._compare_blocks(row, column)
        # one look-up for all pairs; the last row and column stand for all blocks beyond the table
        allowed = self._block_mask(row.device)
        height, width = allowed.shape
        return allowed[row.clamp(max=height - 1), column.clamp(max=width - 1)]

    def _block_mask(self, device: torch.device) -> Tensor:
        """Return the table as a mask of blocks, with one extra row and column for blocks beyond it."""
        width = max((block + 1 for blocks in self.table for block in blocks), default=0)
        allowed = torch.zeros(len(self.table) + 1, width + 1, dtype=torch.bool)
        for n, blocks in enumerate(self.table):
            allowed[n, list(blocks)] = True
        return allowed.to(device)

    def _compare_blocks(self, row: Tensor, column: Tensor) -> Tensor:
        allowed = (row < 0) & (column < 0)
        for n, blocks in enumerate(self.table):
            read = column < 0  # shaped like the keys, so that pairs are combined once for each query block
            for block in blocks:
                read = read | (column == block)
            allowed = allowed | ((row == n) & read)
        return allowed

    def reach(self) -> tuple[float, float]:
        steps = [n - block for n, blocks in enumerate(self.table) for block in blocks]
        slack = self.size - 1
        return (max(steps) * self.size + slack, slack - min(steps) * self.size) if steps else (0, 0)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        last = torch.tensor([*self._last_readers(), -1], device=k.device)
        return last[(k // self.size).clamp(max=len(last) - 1)] >= now // self.size

    def capacity(self, length: int) -> int:
        max_keys, alive, dying = 0, 0, Counter[int]()
        last = [*self._last_readers(), *[-1] * len(self.table)]
        for n in range(min(length // self.size, len(self.table)) + 1):
            alive -= dying[n]  # alive: earlier blocks that block n or a later one reads
            own_keys = min(self.size - 1, length - n * self.size) if last[n : n + 1] >= [n] else 0
            max_keys = max(max_keys, alive * self.size + own_keys)
            if last[n : n + 1] > [n]:
                alive += 1
                dying[last[n] + 1] += 1
        return max_keys

    def _last_readers(self) -> list[int]:
        """Return the last query block that reads each key block, -1 if none does."""
        last = {block: n for n, blocks in enumerate(self.table) for block in blocks}
        return [last.get(block, -1) for block in range(max(last, default=-1) + 1)]

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        top, bottom, left, right = (torch.as_tensor(end) // self.size for end in (q_lo, q_hi, k_lo, k_hi))
        allowed = self._block_mask(top.device)
        before = F.pad(allowed.cumsum(0, dtype=torch.int32).cumsum(1, dtype=torch.int32), (1, 0, 1, 0))
        height, width = before.shape
        rows, columns = (bottom - top + 1), (right - left + 1)
        top, bottom = (end.clamp(max=height - 1) for end in (top, bottom + 1))
        left, right = (end.clamp(max=width - 1) for end in (left, right + 1))
        count = before[bottom, right] - before[top, right] - before[bottom, left] + before[top, left]
        return count > 0, count == rows * columns


EXAMPLES = (Blocks(((0,), (0, 1), (2, 0), (1,)), size=3), Blocks(((1, 2), (2,), (), (4,)), size=2))
