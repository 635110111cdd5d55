"""Panel and Picture: what is drawn, before it is known whether in a terminal or in a file."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CELLS, NARROW = 24, 16  # along a side: of a panel by itself, of one beside others
MOST = 2048  # positions of which all pairs are looked at


class Panel(NamedTuple):
    """A grid of cells. A cell is of kind n of its picture's, 0 of none, and filled to the `level`, from 0 to 1."""

    title: str
    kind: Int[Tensor, "R C"]
    level: Float[Tensor, "R C"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


class Picture(NamedTuple):
    """Panels side by side under one caption, what their kinds are called, and what lines and columns are."""

    caption: str
    kinds: tuple[str, ...]
    panels: tuple[Panel, ...]
    line: str = "query"
    column: str = "key"
    note: str = ""


def kinds_in(picture: Picture) -> list[int]:
    """The numbers of the kinds that some cell of a picture has."""
    return sorted({int(n) for panel in picture.panels for n in panel.kind.unique()} - {0})


def grid(title: str, kind: Int[Tensor, "T S"], step: int = 1, *, first: tuple[int, int] = (0, 0)) -> Panel:
    """Kinds of pairs as a panel whose cells are `step` by `step` pairs: of the kind that most of them have."""
    down, across = (-(-size // step) for size in kind.shape)
    padded = kind.new_full((down * step, across * step), -1)
    padded[: kind.shape[0], : kind.shape[1]] = kind
    cells = padded.view(down, step, across, step).transpose(1, 2).flatten(2)  # [R C step*step]
    counts = torch.stack([(cells == n).sum(-1) for n in range(1, max(2, int(kind.max()) + 1))])  # [n R C]
    some, all_ = counts.sum(0), (cells >= 0).sum(-1)
    names = [
        tuple(str(start + n * step) for n in range(size)) for start, size in zip(first, (down, across), strict=True)
    ]
    return Panel(title, (counts.argmax(0) + 1) * (some > 0), some / all_, *names)


def shades(title: str, level: Float[Tensor, "R C"], rows: Sequence[str], columns: Sequence[str]) -> Panel:
    """Numbers from 0 to 1 as a panel of one kind."""
    return Panel(title, (level > 0).long(), level.clamp(0, 1), tuple(rows), tuple(columns))


def layers_of_kinds(masks: Sequence[Bool[Tensor, "T S"]]) -> Int[Tensor, "T S"]:
    """Masks as one matrix of kinds; where they overlap the first counts."""
    found = torch.zeros_like(masks[0], dtype=torch.long)
    for n, mask in enumerate(masks, start=1):
        found = torch.where((found == 0) & mask, n, found)
    return found


def span(longest: int, length: int | None, cells: int) -> tuple[int, int]:
    """How many positions to draw, and how many make a cell, so that what is `longest` fills at most a third of a side.

    Without a `length`, cells are a power of two of positions.
    """
    if length is not None:
        return length, -(-length // cells)
    step = 1
    while 3 * longest > cells * step and cells * step < MOST:
        step *= 2
    return cells * step, step
