"""Image2D: the 2D local attention of the Image Transformer."""

from dataclasses import dataclass

from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.grid import Grid


@dataclass(frozen=True)
class Image2D(Spelled):
    """2D local attention of the Image Transformer: the query's block and the pixels above and beside it.

    The pattern is `Causal() & Grid(width, *memory, block)`. The area around a block has memory[0] rows above
    it and memory[1] columns on each side. A query reads itself and the earlier positions of its block and this area.

    Choose it for images, and `Image1D` for other long sequences. Positions follow the order of generation: blocks from
    left to right and from top to bottom, and row by row inside a block. `Raster` reorders the pixels of an image in
    this way for a model.

    width: number of positions in a row of the image. A pixel with three channels that are generated one by one has
        three positions.
    block: rows and columns of a query block, the paper's h_q and w_q.
    memory: rows above the block and columns on each side of it that are read, the paper's h_m and w_m.

    Errors: ValueError if width is not a multiple of the columns of a block, or if memory is not two numbers.
    Source: Parmar et al., 2018, arXiv:1802.05751, section 3.3.
    """

    width: int
    block: tuple[int, int]
    memory: tuple[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.memory, tuple) or len(self.memory) != 2:
            raise ValueError(f"{self}: memory must be two numbers: the rows above and the columns to each side")
        _ = self.expression

    @property
    def expression(self) -> Pattern:
        return Causal() & Grid(self.width, *self.memory, self.block)


EXAMPLES = (Image2D(6, (2, 3), (1, 1)), Image2D(8, (2, 2), (2, 2)))
