"""Raster: the order in which a picture's places are generated, row by row or block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_multiple, check_whole_numbers


class Box(NamedTuple):
    """A rectangle of places, its edges inside; `has_places` says whether it holds any."""

    has_places: Tensor
    top: Tensor
    left: Tensor
    bottom: Tensor
    right: Tensor


@dataclass(frozen=True)
class Raster:
    """Position p is a row and a column: blocks from left to right and downwards, in each its rows from left to right.

    width: places of a row.
    block: rows and columns of a block; (1, 1) is plain raster order.

    Errors: ValueError for a width that blocks do not fill.
    """

    width: int
    block: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_at_least("width", self.width, 1)
        if len(check_whole_numbers("block", self.block, 1)) != 2:
            raise ValueError(f"block={self.block} are not two numbers; give the rows and the columns of a block")
        check_multiple("width", self.width, "columns of a block", self.block[1])

    @property
    def size(self) -> int:
        """Places of a block."""
        return self.block[0] * self.block[1]

    @property
    def band(self) -> int:
        """Places of a row of blocks."""
        return self.block[0] * self.width

    def row_and_column(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """The row and the column of each position."""
        rows, columns = self.block
        block, inside = pos % self.band // self.size, pos % self.size
        return pos // self.band * rows + inside // columns, block * columns + inside % columns

    def position(self, row: Tensor, column: Tensor) -> Tensor:
        """The position of each place."""
        rows, columns = self.block
        inside = row % rows * columns + column % columns
        return row // rows * self.band + column // columns * self.size + inside

    def boxes(self, lo: Tensor, hi: Tensor) -> Iterator[Box]:
        """Rectangles that together hold exactly the places of positions lo .. hi, both ends included."""
        end = hi + 1
        starts, ends = [lo], [end]
        for size in sorted({self.block[1], self.size, self.band} - {1}):  # lines of a block, blocks, rows of blocks
            up, down = -(-lo // size) * size, end // size * size
            inside = up <= down
            starts.append(torch.where(inside, up, ends[-1]))
            ends.append(torch.where(inside, down, ends[-1]))
        for first, last in pairwise([*starts, *reversed(ends)]):
            yield Box(first < last, *self.row_and_column(first), *self.row_and_column(last - 1))
