"""The figure `axial`: pixels on which a pixel depends, and the two halves of the decoder."""

from collections.abc import Iterator
from functools import reduce

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.axial import Axial
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

SIDE, PIXEL = 6, (3, 3)  # rows and columns of the image; row and column of the pixel
ROW, COLUMN = Axial((SIDE, SIDE), 1), Axial((SIDE, SIDE), 0)
HERE = 4


def draw() -> Iterator[Diagram | Picture]:
    """Yield the pixels on which a pixel depends, without and with the decoder's masks, then the decoder."""
    above = PIXEL[0] - 1, PIXEL[1]
    down, row = _depends((ROW, Causal() & COLUMN), above), _depends((Causal() & ROW,), PIXEL)
    panels = {
        "one row layer": _depends((ROW,), PIXEL),
        "row, then column": _depends((ROW, COLUMN), PIXEL),
        "both causal": _depends((Causal() & ROW, Causal() & COLUMN), PIXEL),
        "decoder": torch.where(down > 0, 2, 3 * row),
    }
    for kind in panels.values():
        kind[PIXEL] = HERE
    yield Picture(
        f"pixels on which a pixel of a {SIDE} by {SIDE} image depends",
        ("through these layers", "through outer layers", "through inner layers", "the pixel"),
        tuple(Panel(title, kind, (kind > 0).float(), numbers(SIDE), numbers(SIDE)) for title, kind in panels.items()),
        "row of the image",
        "column of the image",
        note="With two causal layers, pixels above and further right are missing. The decoder has all earlier pixels.",
    )
    yield _decoder()


def _depends(layers: tuple[Pattern, ...], pixel: tuple[int, int]) -> Int[Tensor, "S S"]:
    """Return 1 for each pixel on which a pixel depends after some layers with residual connections.

    layers: patterns of the layers, the lowest first.
    pixel: row and column of the pixel.
    """
    size = SIDE * SIDE
    reads = [pattern.matrix(size).float() + torch.eye(size) for pattern in layers]
    paths = reduce(lambda below, layer: layer @ below, reads)
    return (paths[pixel[0] * SIDE + pixel[1]] > 0).long().view(SIDE, SIDE)


def _decoder() -> Diagram:
    diagram = Diagram(
        "the axial decoder",
        kinds=("outer layers: computed once per row", "inner layers: computed once per pixel"),
        note="down: each row gets the outer output of the row above. right: each pixel gets the pixel on its left.",
    )
    diagram.box(25, 0, 44, 3, "embeddings e of the pixels")
    diagram.arrow((34, 2), (34, 4.7), kind=1)
    diagram.box(12, 5, 44, 3, "outer: rows without mask, columns causal", 1)
    diagram.arrow((34, 7), (34, 9.7), kind=1)
    diagram.box(24, 10, 20, 3, "down by one row", 1)
    diagram.arrow((63, 2), (63, 9.7), kind=2)
    diagram.box(52, 10, 24, 3, "right by one pixel", 2)
    diagram.line((34, 12), (34, 14), kind=1)
    diagram.line((34, 14), (47, 14), kind=1)
    diagram.line((63, 12), (63, 14), kind=2)
    diagram.line((63, 14), (47, 14), kind=2)
    diagram.words(49, 15, "sum")
    diagram.arrow((47, 14), (47, 15.7), kind=2)
    diagram.box(25, 16, 44, 3, "inner: rows causal", 2)
    diagram.arrow((47, 18), (47, 19.7), kind=2)
    diagram.box(25, 20, 44, 3, "probabilities of each pixel's value")
    return diagram
