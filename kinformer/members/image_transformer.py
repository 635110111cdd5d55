"""Image Transformer: pictures generated value by value, each value from its neighbourhood."""

from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_multiple, check_option, check_whole_numbers
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.image import ImageModel, check_shape
from kinformer.models.support.categorical_intensities import CategoricalIntensities
from kinformer.models.support.intensities import Intensities
from kinformer.models.support.logistic_mixture import LogisticMixture
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.patterns.image_1d import Image1D
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.nn.positions.halves import Halves, Kind

Form = Literal["1d", "2d"]
Output = Literal["categorical", "logistics"]
MOST = 8  # largest default rows and columns of a tile


@member(
    cost="pixels * (block + memory)",
    recipe=Recipe(lr=1e-3, warmup=0.1),
    needs={"block, memory": "form=1d", "tile, around": "form=2d", "mixtures": "output=logistics"},
)
def image_transformer(
    shape: tuple[int, ...] = (1, 28, 28),
    form: Form = "1d",
    block: int = 256,
    memory: int = 256,
    tile: tuple[int, ...] = (),
    around: tuple[int, ...] = (),
    output: Output = "categorical",
    mixtures: int = 10,
    upscale: int | None = None,
    classes: int = 0,
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    hidden: int | None = None,
    position: Kind = "learned",
    norm: Norms = "post",
    dropout: float = 0.0,
) -> ImageModel:
    """Image Transformer (Parmar et al., 2018, arXiv:1802.05751) with local attention.

    `--data images=FOLDER` supplies the pictures and their `shape`. Channels have separate embeddings.

    shape: channels, rows and columns of a picture.
    form: order of the values. With "1d" it is row by row: the queries of a block read this block and the values before
        it. With "2d" it is tile by tile: the queries of a tile read the tile and its surroundings. With "2d" a query
        sees more of the rows above it.
    block: values in a block of queries ("1d").
    memory: values before the block that its queries also read ("1d").
    tile: rows and columns of a tile, in pixels ("2d"); by default the largest divisors of the picture up to 8.
    around: rows above the tile, and columns on each side, that its queries also read, in pixels; `tile` by default.
    output: distribution of a step. With "categorical" each channel of a pixel has a step with 256 probabilities. With
        "logistics" each pixel has a step with a mixture of logistics, which is a third of the steps in colour.
    mixtures: number of logistic distributions in a mixture ("logistics").
    upscale: factor of super-resolution: an encoder reads a copy of the picture that is smaller by this factor. The
        paper makes 32 x 32 from 8 x 8 pixels, which is upscale=4. None trains without an encoder.
    classes: number of classes of pictures; the class of a picture adds a vector to every step. 0 means no classes.
    d: model width.
    depth: number of blocks, and of encoder blocks if there is an encoder.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    position: kind of position encoding; half of each vector encodes the row, half the column and channel.
    norm: "post" as in the paper, or "pre" for deeper models.
    dropout: dropout probability of embeddings and sublayer outputs.

    Differences: the paper has d=512, 12 layers and blocks of 256. The default size here is smaller.
    """
    channels, rows, columns = check_shape(shape)
    depth = check_at_least("depth", depth, 1)
    wiring = Wiring(d, heads, head_dim, norm=norm, dropout=dropout)
    values = _make_intensities(output, d, channels, mixtures)
    each, tiles = channels // values.n, (1, 1)
    if check_option("form", form, Form) == "1d":
        pattern: Pattern = Image1D(block, memory)
    else:
        tiles, near = _divide(rows, columns, tile, around)
        pattern = Image2D(columns * each, (tiles[0], tiles[1] * each), (near[0], near[1] * each))

    def layer(reads: Pattern, *middle_layers: Layer) -> Layer:
        return wiring.block(wiring.attention(reads), *middle_layers, MLP(d, hidden, activation="relu"))

    def make_position(down: int, across: int, tiles: tuple[int, int] = (1, 1)) -> Halves:
        return Halves(d, down, across, each, block=tiles, kind=position)

    options: dict[str, Any] = {"block": tiles, "classes": classes, "dropout": dropout}
    options["position"] = make_position(rows, columns, tiles)
    if upscale is None:
        return ImageModel(shape, values, wiring.stack(layer(pattern) for _ in range(depth)), **options)
    body = wiring.stack(layer(pattern, wiring.attention(Full(), cross=True)) for _ in range(depth))
    encoder = wiring.stack(layer(Full()) for _ in range(depth))
    source_position = make_position(max(1, rows // check_at_least("upscale", upscale, 2)), max(1, columns // upscale))
    return ImageModel(shape, values, body, encoder=encoder, factor=upscale, source_position=source_position, **options)


def _make_intensities(output: Output, d: int, channels: int, mixtures: int) -> Intensities:
    """Make 256 probabilities for each channel with its own embeddings, or a mixture of logistics for each pixel."""
    if check_option("output", output, Output) == "categorical":
        return CategoricalIntensities(d, channels=channels)
    return LogisticMixture(d, channels, mixtures)


def _divide(
    rows: int, columns: int, tile: tuple[int, ...], around: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows and columns of a tile and of its surroundings: the given ones, or the largest that divide."""
    best = tuple(max(n for n in range(1, MOST + 1) if side % n == 0) for side in (rows, columns))
    tile = _pair("tile", tile or best, 1)
    for name, side, size in (("rows", rows, tile[0]), ("columns", columns, tile[1])):
        check_multiple(f"{name} of a picture", side, f"{name} of a tile", size)
    return tile, _pair("around", around or tile, 0)


def _pair(name: str, value: tuple[int, ...], least: int) -> tuple[int, int]:
    if len(check_whole_numbers(name, value, least)) != 2:
        raise ValueError(f"{name}={value} is not a pair of numbers; give rows and columns, such as (4, 7)")
    return value[0], value[1]


TINY: dict[str, Any] = {"shape": (2, 4, 4), "d": 16, "depth": 2, "heads": 2}
IN_ROWS: dict[str, Any] = {**TINY, "block": 5, "memory": 4}
EXAMPLES = (
    lambda: image_transformer(**TINY, form="2d", tile=(2, 2), around=(1, 2), classes=2),
    lambda: image_transformer(**IN_ROWS, output="logistics", mixtures=2, upscale=2, norm="pre"),
    lambda: image_transformer(**IN_ROWS, position="sinusoidal", hidden=24),
)
