"""Axial Transformer: pictures by whole rows above and the own row."""

from typing import Any

from kinformer.core.checks import check_unused
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import Wiring
from kinformer.models.image import ImageModel, check_shape
from kinformer.models.support.categorical_intensities import CategoricalIntensities
from kinformer.nn.depth.axial import AxialDecoder
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.patterns.axial import Axial
from kinformer.nn.positions.coordinates import Coordinates


@member(recipe=Recipe(lr=1e-3, warmup=0.05))
def axial_transformer(
    shape: tuple[int, ...] = (1, 28, 28),
    d: int = 128,
    outer: int = 2,
    inner: int = 2,
    channel: int = 1,
    heads: int = 4,
    head_dim: int | None = None,
    hidden: int | None = None,
    dropout: float = 0.0,
) -> ImageModel:
    """The Axial Transformer (Ho et al., 2019, arXiv:1912.12180), for `--data images=FOLDER`, which says their `shape`.

    `outer` pairs of blocks, row attention without a mask and column attention with one, see all rows above; what they
    made of the row above is handed down and added to what stands left, and `inner` blocks read the own row. So a value
    reads all before it at rows + columns keys, and the outer half is computed once a row. Of several channels one is
    generated after the other, each a picture of its own: `channel` pairs of blocks read those before it both ways, row
    by row and column by column, and both halves are given what they made of them.

    Positions are tables of rows, those of each channel its own, and of columns. The small size is this library's.
    """
    channels, rows, columns = check_shape(shape)
    if channels == 1:
        check_unused("pictures of one channel", channel=(channel, 1))
    wiring = Wiring(d, heads, head_dim, dropout=dropout)
    arrays = (channels, rows, columns)
    row, column = Axial(arrays, 2), Axial(arrays, 1)

    def stack(*patterns: Pattern) -> Layer:
        return wiring.stack(wiring.block(wiring.attention(pattern), MLP(d, hidden)) for pattern in patterns)

    def make_coordinates() -> Coordinates:
        return Coordinates(d, channels * rows, columns)

    options: dict[str, Any] = {}
    if channels > 1:
        options = {"planes": rows, "encoder": stack(*[row, column] * channel)}
    above, inner_stack = stack(*[row, Causal() & column] * outer), stack(*[Causal() & row] * inner)
    body = AxialDecoder(
        above, inner_stack, columns, position=make_coordinates(), inner_position=make_coordinates(), **options
    )
    return ImageModel(shape, CategoricalIntensities(d), body, planes=channels > 1, dropout=dropout)


TINY: dict[str, Any] = {"shape": (1, 4, 3), "d": 16, "heads": 2, "outer": 1, "inner": 1}
CHANNELS = {"body.encoder": "the same encoder reads the channels before each channel"}
EXAMPLES = (
    lambda: axial_transformer(**TINY),
    Example(lambda: axial_transformer(**{**TINY, "shape": (3, 2, 4)}, hidden=24), shares=CHANNELS),
)
