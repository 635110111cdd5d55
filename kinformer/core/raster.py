"""Raster: the order in which the places of a picture are generated, row by row or block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_multiple, check_whole_numbers


class Box(NamedTuple):
    """A rectangle of places (pixels or tokens) of a picture.

    has_places: True if it contains at least one place.
    top, left, bottom, right: the edges, which belong to the rectangle.
    """

    has_places: Tensor
    top: Tensor
    left: Tensor
    bottom: Tensor
    right: Tensor


@dataclass(frozen=True)
class Raster:
    """A map between positions and places (row and column) of a picture.

    Blocks follow one another from left to right and downwards; the rows inside each block are read from left to right.

    width: the number of places in a row.
    block: the numbers of rows and columns of a block; (1, 1) is plain raster order.

    Errors: ValueError if `width` is not a multiple of the block's columns.
    """

    width: int
    block: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_at_least("width", self.width, 1)
        if len(check_whole_numbers("block", self.block, 1)) != 2:
            raise ValueError(f"block={self.block} does not have 2 numbers; give the rows and the columns of a block")
        check_multiple("width", self.width, "block[1]", self.block[1])

    @property
    def size(self) -> int:
        """The number of places in a block."""
        return self.block[0] * self.block[1]

    @property
    def band(self) -> int:
        """The number of places in a row of blocks."""
        return self.block[0] * self.width

    def row_and_column(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and the column of each position."""
        rows, columns = self.block
        block, inside = pos % self.band // self.size, pos % self.size
        return pos // self.band * rows + inside // columns, block * columns + inside % columns

    def position(self, row: Tensor, column: Tensor) -> Tensor:
        """Return the position of each place."""
        rows, columns = self.block
        inside = row % rows * columns + column % columns
        return row // rows * self.band + column // columns * self.size + inside

    def boxes(self, lo: Tensor, hi: Tensor) -> Iterator[Box]:
        """Yield rectangles that together contain exactly the places of positions lo .. hi, ends included."""
        end = hi + 1
        starts, ends = [lo], [end]
        for size in sorted({self.block[1], self.size, self.band} - {1}):  # lines of a block, blocks, rows of blocks
            up, down = -(-lo // size) * size, end // size * size
            inside = up <= down
            starts.append(torch.where(inside, up, ends[-1]))
            ends.append(torch.where(inside, down, ends[-1]))
        for first, last in pairwise([*starts, *reversed(ends)]):
            yield Box(first < last, *self.row_and_column(first), *self.row_and_column(last - 1))
