"""Image2D: blocks of a picture, and what lies above and beside them."""

from dataclasses import dataclass

from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.grid import Grid


@dataclass(frozen=True)
class Image2D(Spelled):
    """j <= i, and j is in the query's block or at most `memory` rows above it and columns to its left or right.

    The 2D local attention of the Image Transformer, `Causal() & Grid(...)`. Positions are the order of generation:
    blocks from left to right and downwards, in each its rows (`Raster`, which is what a model reads its picture by).
    What of the memory is generated later than the query is not read.

    width: positions of a row of the picture; a pixel of three channels that are generated one by one has three.
    block: rows and columns of a query block, the paper's h_q and w_q.
    memory: rows above it, and columns to its left and right, that are read: the paper's h_m and w_m.

    Errors: ValueError for a width that blocks do not fill. Source: Parmar et al., 2018, arXiv:1802.05751, section 3.3.
    """

    width: int
    block: tuple[int, int]
    memory: tuple[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.memory, tuple) or len(self.memory) != 2:
            raise ValueError(f"{self}: memory must be two numbers; give the rows above and the columns to each side")
        _ = self.expression

    @property
    def expression(self) -> Pattern:
        return Causal() & Grid(self.width, *self.memory, self.block)


EXAMPLES = (Image2D(6, (2, 3), (1, 1)), Image2D(8, (2, 2), (2, 2)))
