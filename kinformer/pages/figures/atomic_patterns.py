"""The figure `atomic_patterns`: atomic, compound and extended patterns of sparse attention."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.core.raster import Raster
from kinformer.nn.patterns.axial import Axial
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.grid import Grid
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.patterns.tree import Tree
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

LENGTH, SIDE, PIXEL = 12, 6, (3, 3)  # tokens of a matrix; side of the image; row and column of the pixel that reads
KINDS = ("global", "band", "dilated", "random", "block")
NODES = ("0", "1", "01", "2", "3", "23", "0-3", "4", "5", "45", "6", "7", "67", "4-7", "0-7")  # of 8 tokens
Parts = dict[str, Pattern]


def draw() -> Iterator[Picture]:
    """Yield the five atomic patterns, four compound patterns, and three extended patterns."""
    wide, chosen = Tokens(1) | Rows(1), Random(1, symmetric=True, back=2)
    atomic: Parts = {"global": wide, "band": Band(1), "dilated": Dilated(2, 2), "random": chosen, "block": Block(4)}
    yield Picture(
        "five atomic patterns",
        KINDS,
        tuple(_matrix(title, {title: pattern}) for title, pattern in atomic.items()),
        note=f"{LENGTH} tokens, each pattern as the matrix of one head.",
    )
    band = Band(2)
    compound: dict[str, Parts] = {
        "Star-Transformer": {"global": wide, "band": Band(1)},
        "Longformer": {"global": wide, "band": band, "dilated": Dilated(2, 3)},
        "ETC": {"global": Tokens(2) | Rows(2), "band": Shifted(band, 2)},
        "BigBird": {"global": wide, "band": Band(1), "random": chosen},
    }
    yield Picture(
        "four compound patterns: unions of atomic patterns",
        KINDS,
        tuple(_matrix(title, parts) for title, parts in compound.items()),
        note="The global tokens of ETC (two) stand outside the text. In Longformer only some heads are dilated.",
    )
    images = {
        "block": pixels_read(Grid(SIDE, 0, 0, (2, 2)), SIDE, PIXEL, (2, 2)),
        "window": pixels_read(Grid(SIDE, 1, 1), SIDE, PIXEL),
        "axial": pixels_read(Axial((SIDE, SIDE), 0) | Axial((SIDE, SIDE), 1), SIDE, PIXEL),
    }
    yield Picture(
        f"extended patterns for images: pixels of a {SIDE} by {SIDE} image that one pixel reads",
        ("pixels that it reads", "the pixel itself"),
        tuple(Panel(title, kind, (kind > 0).float(), *[numbers(SIDE)] * 2) for title, kind in images.items()),
        "row of the image",
        "column of the image",
    )
    yield Picture(
        "an extended pattern for text: the binary tree of spans of BP-Transformer",
        ("a token reads tokens and spans", "a span reads its tokens"),
        (_tree(),),
        "node that reads",
        "node that is read",
        note="Eight tokens and seven spans, each span after its tokens; k = 1.",
    )


def pixels_read(
    pattern: Pattern, side: int, pixel: tuple[int, int], block: tuple[int, int] = (1, 1)
) -> Int[Tensor, "S S"]:
    """Return 1 for each pixel of a square image that a pixel reads, 2 for the pixel itself, 0 for others.

    pattern: keys that each pixel reads, by the numbers of the pixels.
    side: number of rows and of columns.
    pixel: row and column of the pixel that reads.
    block: rows and columns of the blocks in which pixels are numbered; (1, 1) numbers them row by row.
    """
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    numbered = Raster(side, block).position(rows, columns)
    kind = pattern.matrix(side * side)[numbered[pixel], numbered].long()
    kind[pixel] = 2
    return kind


def _matrix(title: str, parts: Parts) -> Panel:
    kind = torch.zeros(LENGTH, LENGTH, dtype=torch.long)
    for name, part in reversed(parts.items()):
        kind[part.matrix(LENGTH)] = 1 + KINDS.index(name)
    return Panel(title, kind, (kind > 0).float(), numbers(LENGTH), numbers(LENGTH))


def _tree() -> Panel:
    reads = Tree(1).matrix(len(NODES))
    is_token = torch.tensor([len(name) == 1 for name in NODES])
    kind = torch.where(reads, torch.where(is_token[:, None], 1, 2), 0)
    return Panel("", kind, reads.float(), NODES, NODES)
