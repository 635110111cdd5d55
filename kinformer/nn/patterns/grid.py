"""Grid: attention to a rectangular neighbourhood in an image."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layout import Layout, Near
from kinformer.core.pattern import Index, Or, Pattern
from kinformer.core.raster import Raster
from kinformer.nn.patterns.band import Band


@dataclass(frozen=True)
class _Around(Pattern):
    """Neighbourhood of an image as a single part, without a finer `expression`. `Grid` documents its fields.

    All queries of a block read the same keys: the positions around their block.
    """

    width: int
    rows: int
    columns: int
    block: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_at_least("Grid.rows", self.rows, 0)
        check_at_least("Grid.columns", self.columns, 0)
        _ = self.raster  # checks that blocks fill the width

    @property
    def raster(self) -> Raster:
        """The order in which positions number the pixels of the image."""
        return Raster(self.width, self.block)

    @property
    def queries(self) -> Raster:
        """The order of the blocks of queries; all queries of a block read the same keys."""
        return Raster(self.width // self.block[1])

    @property
    def block_reach(self) -> tuple[int, int]:
        """Distance from a query's block to the furthest block with a key, in rows and columns of blocks."""
        rows, columns = self.block
        return -(-self.rows // rows), min(self.width // columns - 1, -(-self.columns // columns))

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        (rows, columns), q, k = self.block, torch.as_tensor(q), torch.as_tensor(k)
        (top, left), (row, column) = self.queries.row_and_column(q // self.raster.size), self.raster.row_and_column(k)
        below, right = row - top * rows, column - left * columns
        near = (below >= -self.rows) & (below < rows + self.rows)
        return near & (right >= -self.columns) & (right < columns + self.columns)

    @property
    def layout(self) -> Layout:
        return Near(*self.reach())

    def reach(self) -> tuple[float, float]:
        (rows, columns), (up, aside), raster = self.block, self.block_reach, self.raster
        # offset of the first key in the furthest block
        first = (up * rows - self.rows) * columns + max(0, aside * columns - self.columns)
        back = up * raster.band + (aside + 1) * raster.size - 1 - first
        return back, back  # the neighbourhood is the same in both directions

    def last_reader(self, k: Tensor) -> Tensor:
        """Return the last position that reads key k."""
        (rows, columns), (row, column) = self.block, self.raster.row_and_column(k)
        across = ((column + self.columns) // columns).clamp_max(self.width // columns - 1)
        return self.raster.size * (self.queries.position((row + self.rows) // rows, across) + 1) - 1

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return self.last_reader(k) >= now

    def capacity(self, length: int) -> int:
        at = torch.arange(length)
        # number of keys that no later query reads, at each position
        dropped = torch.bincount(self.last_reader(at).clamp_max(length), minlength=length + 1)[:length].cumsum(0)
        return int((at + 1 - dropped).max()) if length else 0

    def period(self) -> int | None:
        return self.raster.band if self.columns else self.raster.size

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        (rows, columns), size = self.block, self.raster.size
        q_lo, q_hi, k_lo, k_hi = (torch.as_tensor(end) for end in (q_lo, q_hi, k_lo, k_hi))
        any_pair = q_lo + q_hi + k_lo + k_hi < 0
        every_pair = ~any_pair
        keys = list(self.raster.boxes(k_lo, k_hi))
        for q in self.queries.boxes(q_lo // size, q_hi // size):
            up, down = q.top * rows - self.rows, q.bottom * rows + rows - 1 + self.rows
            left, right = q.left * columns - self.columns, q.right * columns + columns - 1 + self.columns
            min_row, max_row = q.bottom * rows - self.rows, q.top * rows + rows - 1 + self.rows
            first, final = q.right * columns - self.columns, q.left * columns + columns - 1 + self.columns
            for k in keys:
                has_places = q.has_places & k.has_places
                meets = (k.bottom >= up) & (k.top <= down) & (k.right >= left) & (k.left <= right)
                inside = (k.top >= min_row) & (k.bottom <= max_row) & (k.left >= first) & (k.right <= final)
                any_pair, every_pair = any_pair | (has_places & meets), every_pair & (inside | ~has_places)
        return any_pair, every_pair


@dataclass(frozen=True)
class Grid(_Around):
    """Local attention in an image: each query reads the positions a few rows and columns around it.

    |row(i) - row(j)| <= rows and |column(i) - column(j)| <= columns

    Choose it for images instead of `Band`, since a window over positions in raster order contains the pixel above the
    query only if it is as long as a row.

    Positions follow the image row by row. With a `block`, positions follow it block by block, and distances are counted
    from the edges of the query's block. All queries of a block then read the same keys, and `Causal() & Grid(...)` is
    `Image2D`.

    Costs: in images with wide rows, keys between the rows of the neighbourhood are not computed, as each row of blocks
    is read as one window. With more than four windows all keys from the first to the last window are computed.

    width: number of positions in a row of the image. A pixel with three channels that are generated one by one has
        three positions.
    rows: number of rows above and below that are read.
    columns: number of positions to the left and to the right that are read.
    block: rows and columns of a block; (1, 1) for no blocks.

    Errors: ValueError if width is not a multiple of the columns of a block.
    Source: 'block local and 2D' among the extended patterns in the survey of Lin et al., 2021, arXiv:2106.04554,
    section 4.1.1; blocks: Parmar et al., 2018, arXiv:1802.05751.
    """

    @property
    def expression(self) -> Pattern:
        (up, aside), raster = self.block_reach, self.raster
        near = (aside + 1) * raster.size - 1
        if not up or 2 * near + 1 >= raster.band:
            return self
        inside = _Around(self.width, self.rows, self.columns, self.block)
        ahead = (n * raster.band for n in range(-up, up + 1))
        return reduce(Or, (Band(near - n, near + n) & inside for n in ahead))


EXAMPLES = (Grid(5, 1, 1), Grid(4, 2, 0), Grid(6, 1, 1, (2, 3)), Grid(9, 1, 0, (1, 3)), Grid(2, 0, 3))
