"""Halves: position vectors with one half for the row of a picture and one for its column and channel."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_option
from kinformer.nn.positions.image_positions import Pictured
from kinformer.nn.positions.sinusoidal import Sinusoidal

Kind = Literal["learned", "sinusoidal"]


class Halves(Pictured):
    """Position vectors of a picture: a half for the row, a half for column and channel; 0 at padding.

    e(pos) = [e(row); e'(column * channels + channel)]

    Here e and e' are two encodings of half the width. Choose it for pictures. The Image Transformer uses it.

    d: width of a vector; if it is odd, the row gets the smaller half.
    rows, columns: size of the picture, in pixels.
    channels: number of values per pixel, each with its own position.
    block: rows and columns, in pixels, of the blocks in which the picture is generated; (1, 1) is row by row.
    kind: "learned" tables or "sinusoidal" waves; the paper found them equally good.

    Errors: IndexError if a position is beyond the picture.

    Source: Parmar et al., 2018, arXiv:1802.05751, section 3.1.
    """

    def __init__(
        self,
        d: int,
        rows: int,
        columns: int,
        channels: int = 1,
        *,
        block: tuple[int, int] = (1, 1),
        kind: Kind = "learned",
    ):
        super().__init__(check_at_least("d", d, 2), rows, columns, channels, block=block)
        check_option("kind", kind, Kind)
        self.row, self.value = _make_position(kind, rows, d // 2), _make_position(kind, columns * channels, d - d // 2)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        row, column, channel = self.coordinates(pos)
        vectors = torch.cat([self.row(row), self.value(column * self.channels + channel)], -1)
        return vectors * (pos >= 0)[..., None]


def _make_position(kind: Kind, size: int, d: int) -> nn.Embedding | Sinusoidal:
    if kind == "sinusoidal":
        return Sinusoidal(d)
    table = nn.Embedding(size, d)
    nn.init.normal_(table.weight, std=0.02)
    return table


EXAMPLES = (lambda: Halves(16, 8, 4, 2), lambda: Halves(16, 8, 8, block=(2, 4), kind="sinusoidal"))
