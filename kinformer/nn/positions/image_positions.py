"""Pictured: base class of positions that depend on the row, column and channel in a picture."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.position import Position
from kinformer.core.raster import Raster


class Pictured(Position):
    """Base class of position vectors of pictures: it converts a position to row, column and channel.

    d: width of a vector.
    rows, columns: size of the picture, in pixels.
    channels: number of values per pixel; each has its own position, and they follow one another.
    block: rows and columns, in pixels, of the blocks in which the picture is generated; (1, 1) is row by row.

    Errors: IndexError if a position is beyond the picture. An accelerator raises its own assertion instead, so that the
    host does not wait for it.
    """

    def __init__(self, d: int, rows: int, columns: int, channels: int = 1, *, block: tuple[int, int] = (1, 1)):
        super().__init__()
        self.d, self.rows, self.columns = (
            check_at_least("d", d, 1),
            check_at_least("rows", rows, 1),
            check_at_least("columns", columns, 1),
        )
        self.channels = check_at_least("channels", channels, 1)
        self.raster = Raster(columns * channels, (block[0], block[1] * channels))
        self.length = self.size = rows * columns * channels

    def coordinates(self, pos: Int[Tensor, "B T"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the row, column and channel of each position; padding counts as position 0."""
        if not torch.compiler.is_compiling() and pos.numel():
            self._check(pos)
        row, value = self.raster.row_and_column(pos.clamp_min(0))
        return row, value // self.channels, value % self.channels

    def _check(self, pos: Int[Tensor, "B T"]) -> None:
        about = f"is beyond a picture of {self.rows} x {self.columns} x {self.channels}. Use a larger picture"
        if pos.device.type != "cpu":
            torch._assert_async((pos < self.size).all(), f"a position {about}")  # does not wait for the device
        elif (max_pos := int(pos.max())) >= self.size:
            raise IndexError(f"position {max_pos} {about}")
