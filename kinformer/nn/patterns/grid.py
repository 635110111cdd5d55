"""Grid: what lies around a place of a picture."""

from dataclasses import dataclass
from functools import reduce

from kinformer.core.pattern import Or, Pattern
from kinformer.nn.patterns.around import Around
from kinformer.nn.patterns.band import Band


@dataclass(frozen=True)
class Grid(Around):
    """Row and column of j are near those of i: at most `rows` above or below, at most `columns` to the left or right.

    Positions go through a picture row by row. With a `block` they go block by block, and what is near is counted from
    the edges of the query's block, so that all queries of a block read the same: `Causal() & Grid(...)` is then
    `Image2D`. A window of a row's text alone would miss what stands right above.

    width: positions of a row of the picture; a pixel of three channels that are generated one by one has three.
    rows: rows above and below that are read.
    columns: positions of a row to the left and right that are read.
    block: rows and columns of a block.

    Read sparsely where rows are wide: one window for each row of blocks, up to four of them.

    Errors: ValueError for a width that blocks do not fill. Source: 'block local and 2D' among the extended patterns in
    the survey of Lin et al., 2021, arXiv:2106.04554, section 4.1.1; blocks: Parmar et al., 2018, arXiv:1802.05751.
    """

    @property
    def expression(self) -> Pattern:
        (up, aside), raster = self.far, self.raster
        near = (aside + 1) * raster.size - 1
        if not up or 2 * near + 1 >= raster.band:
            return self
        inside = Around(self.width, self.rows, self.columns, self.block)
        ahead = (n * raster.band for n in range(-up, up + 1))
        return reduce(Or, (Band(near - n, near + n) & inside for n in ahead))


EXAMPLES = (Grid(5, 1, 1), Grid(4, 2, 0), Grid(6, 1, 1, (2, 3)), Grid(9, 1, 0, (1, 3)), Grid(2, 0, 3))
