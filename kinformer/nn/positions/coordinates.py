"""Coordinates: position vectors of a picture, sums of vectors for row, column and channel."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.nn.positions.image_positions import Pictured


class Coordinates(Pictured):
    """Position vectors of a picture: sums of trained vectors for row, column and channel; 0 at padding.

    e(pos) = t_row[row] + t_column[column] + t_channel[channel]

    Choose it for pictures. It learns rows + columns + channels vectors instead of one for each position, so that pixels
    of a row or a column share a vector. The Sparse Transformer uses it.

    d: width of a vector.
    rows, columns: size of the picture, in pixels.
    channels: number of values per pixel, each with its own position; 1 needs no table of channels.
    block: rows and columns, in pixels, of the blocks in which the picture is generated; (1, 1) is row by row.
    std: standard deviation of the tables' initial values.

    Errors: IndexError if a position is beyond the picture.

    Source: Child et al., 2019, arXiv:1904.10509, section 5.3.
    """

    def __init__(
        self, d: int, rows: int, columns: int, channels: int = 1, *, block: tuple[int, int] = (1, 1), std: float = 0.02
    ):
        super().__init__(d, rows, columns, channels, block=block)
        sizes = (rows, columns) if channels == 1 else (rows, columns, channels)
        self.tables = nn.ModuleList(nn.Embedding(size, d) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=std)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        vectors = sum(table(at) for table, at in zip(self.tables, self.coordinates(pos), strict=False))
        return vectors * (pos >= 0)[..., None]


EXAMPLES = (lambda: Coordinates(16, 8, 4, 2), lambda: Coordinates(16, 8, 8, block=(2, 4)))
