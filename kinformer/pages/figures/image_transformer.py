"""The figure `image_transformer`: query blocks and memories in an image, and the order of generation."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.raster import Raster
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.grid import Grid
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

SIDE = 8  # rows and columns of the image
LINE, BEFORE = 12, 12  # l_q and l_m of the 1D form
TILE, AROUND = (2, 2), (2, 2)  # h_q, w_q and h_m, w_m of the 2D form
LATER = 3
KINDS = ("query block", "memory", "in the block or memory, but generated later", "the pixel q")


def draw() -> Iterator[Diagram | Picture]:
    """Yield the pixels that a pixel reads in both forms, and the order of generation of both forms."""
    plain, tiled = Raster(SIDE), Raster(SIDE, TILE)
    line = _kinds(plain, Block(LINE), Block(LINE, 1) & Segment(LINE, BEFORE), (4, 1))
    around = Grid(SIDE, *AROUND, TILE) & Block(tiled.band, SIDE)  # no rows of blocks below
    tile = _kinds(tiled, Block(tiled.size), around, (5, 4))
    yield Picture(
        f"pixels that a pixel q of an {SIDE} by {SIDE} image reads",
        KINDS,
        tuple(
            Panel(title, kind, (kind > 0).float(), numbers(SIDE), numbers(SIDE))
            for title, kind in {"1D": line, "2D": tile}.items()
        ),
        "row of the image",
        "column of the image",
        note=f"1D: blocks of {LINE} pixels and a memory of {BEFORE}. 2D: blocks of 2 by 2, extended by 2 rows above "
        "and by 2 columns on each side.",
    )
    yield _orders({"1D": (plain, line), "2D": (tiled, tile)})


def _kinds(raster: Raster, block: Pattern, area: Pattern, pixel: tuple[int, int]) -> Int[Tensor, "S S"]:
    """Return the kind of each pixel, as seen from a pixel that reads.

    raster: order of generation.
    block: query block of each pixel.
    area: query block and memory of each pixel, without the mask of later pixels.
    pixel: row and column of the pixel that reads.
    """
    at = _positions(raster)
    in_block, in_area, earlier = (_row(pattern, at, pixel) for pattern in (block, area, Causal()))
    kind = torch.where(in_block, 1, torch.where(in_area, 2, 0))
    kind = torch.where(in_area & ~earlier, LATER, kind)
    kind[pixel] = len(KINDS)
    return kind


def _row(pattern: Pattern, at: Int[Tensor, "S S"], pixel: tuple[int, int]) -> Bool[Tensor, "S S"]:
    return pattern.matrix(SIDE * SIDE)[at[pixel], at]


def _positions(raster: Raster) -> Int[Tensor, "S S"]:
    return raster.position(*torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"))


def _orders(forms: dict[str, tuple[Raster, Int[Tensor, "S S"]]]) -> Diagram:
    diagram = Diagram("order in which the same pixels are generated", kinds=KINDS)
    for panel, (title, (raster, kind)) in enumerate(forms.items()):
        left = 50 * panel
        diagram.words(left, 0, title, bold=True)
        for row, places in enumerate(_positions(raster).tolist()):
            for column, place in enumerate(places):
                diagram.box(left + 6 * column, 1 + row, 6, 1, str(place), int(kind[row, column]))
    return diagram
