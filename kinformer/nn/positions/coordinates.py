"""Coordinates: a trained table for each coordinate of a picture, their vectors summed."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.nn.positions.image_positions import Pictured


class Coordinates(Pictured):
    """t_row[row] + t_column[column] + t_channel[channel], 0 at padding: a Sparse Transformer's dedicated embeddings.

    Choose it for pictures: rows + columns + channels vectors are learned in place of one for each position, and
    neighbours above and beside share them.

    d: the width of a vector.
    rows, columns: of the picture, in pixels.
    channels: values of a pixel that have a position each; no table for one.
    block: rows and columns, in pixels, of the blocks in which the picture is generated; (1, 1) is row by row.
    std: of the tables at the start.

    Errors: IndexError for a position beyond the picture. Source: Child et al., 2019, arXiv:1904.10509, section 5.3.
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
