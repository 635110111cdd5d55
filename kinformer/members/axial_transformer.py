"""Axial Transformer: a picture model with row and column attention."""

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


@member(cost="pixels**1.5", recipe=Recipe(lr=1e-3, warmup=0.05))
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
    """Axial Transformer (Ho et al., 2019, arXiv:1912.12180) for pictures.

    `outer` pairs of blocks see all rows above: row attention without a mask, then column attention with a causal mask.
    Their output moves down by one row and is added to the token on the left, and `inner` blocks read the token's own
    row. Each value therefore depends on all earlier values, although a query reads at most rows + columns keys. The
    outer half is computed only once per row.

    Several channels are generated one after the other, each as a picture. `channel` pairs of blocks read the earlier
    channels in both directions, by rows and by columns. Both halves receive their output.

    Positions are learned tables of rows, separate for each channel, and of columns.

    shape: channels, rows and columns of a picture; `--data images=FOLDER` supplies it.
    d: model width.
    outer: pairs of blocks over the rows above.
    inner: blocks over the token's own row.
    channel: pairs of blocks over the earlier channels; only for pictures with several channels.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    dropout: dropout probability of embeddings and sublayer outputs.

    Differences: the default sizes are smaller than the paper's.
    """
    channels, rows, columns = check_shape(shape)
    if channels == 1:
        check_unused("images of one channel", channel=(channel, 1))
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
CHANNELS = {"body.encoder": "the same encoder reads the earlier channels for every channel"}
EXAMPLES = (
    lambda: axial_transformer(**TINY),
    Example(lambda: axial_transformer(**{**TINY, "shape": (3, 2, 4)}, hidden=24), shares=CHANNELS),
)
