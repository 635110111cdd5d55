"""The figure `factorised`: pixels that a pixel reads, matrices of the two sets, and a path."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.columns import Columns
from kinformer.nn.patterns.strided import Strided
from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.figures.etc import draw_path
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

SIDE, PIXEL = 6, 21  # rows and columns of the image; the pixel that reads, in row 3 and column 3
LENGTH, STRIDE = 16, 4  # tokens and l of the matrices
KINDS = ("A1", "A2", "A1 and A2", "the pixel itself", "full attention")
Sets = tuple[Pattern, Pattern]


def draw() -> Iterator[Diagram | Picture]:
    """Yield the pixels that a pixel reads, the matrices of both sets, and a path between two tokens."""
    yield Picture(
        f"pixels of a {SIDE} by {SIDE} image that pixel {PIXEL} reads; l = {SIDE}, c = 1",
        KINDS,
        tuple(_pixels(title, sets) for title, sets in _all_sets(SIDE).items()),
        "row of the image",
        "column of the image",
        note="Pixels are numbered row by row. A pixel reads no later pixel.",
    )
    titles = {title: sets for title, sets in _all_sets(STRIDE).items() if title != "full"}
    yield Picture(
        f"the same sets as matrices; {LENGTH} tokens, l = {STRIDE}, c = 1",
        KINDS[:3],
        tuple(_matrix(title, sets) for title, sets in titles.items()),
        note="A row is a query and a column is a key.",
    )
    yield draw_path(
        "the (0) reaches too (7) in two layers; strided sets with l = 3",
        _all_sets(3)["strided"],
        LABELS,
        (0, 1, 7),
        "In layer 1 each token reads A1, and in layer 2 A2.",
    )


def _all_sets(size: int) -> dict[str, Sets]:
    past = Causal()
    return {
        "full": (past, past),
        "strided": (past & Band(size), past & Strided(size)),
        "fixed": (past & Block(size), past & Columns(size, 1)),
    }


def _kinds(sets: Sets, length: int) -> Int[Tensor, "L L"]:
    """Return 1 for pairs of A1, 2 for pairs of A2, 3 for pairs of both, 0 for other pairs."""
    first, second = (pattern.matrix(length).long() for pattern in sets)
    return first + 2 * second


def _pixels(title: str, sets: Sets) -> Panel:
    kind = _kinds(sets, SIDE * SIDE)[PIXEL]
    kind = torch.where(kind > 0, len(KINDS), 0) if title == "full" else kind
    kind[PIXEL] = 1 + KINDS.index("the pixel itself")
    kind = kind.view(SIDE, SIDE)
    return Panel(title, kind, (kind > 0).float(), numbers(SIDE), numbers(SIDE))


def _matrix(title: str, sets: Sets) -> Panel:
    kind = _kinds(sets, LENGTH)
    return Panel(title, kind, (kind > 0).float(), numbers(LENGTH), numbers(LENGTH))
