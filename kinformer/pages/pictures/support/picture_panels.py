"""Panel and Picture: drawings as plain data, independent of the output in a terminal or a file."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CELLS, NARROW = 24, 16  # cells along a side of a single panel, and of a panel beside others
MOST = 2048  # cells stop growing at this number of positions, because all pairs of positions are computed


class Panel(NamedTuple):
    """A grid of R by C cells, drawn as a part of a picture.

    title: title of the panel, or "".
    kind: number of the kind of each cell, from 1; 0 for an empty cell.
    level: filled part of each cell, from 0 to 1.
    rows, columns: names of the rows and columns.
    """

    title: str
    kind: Int[Tensor, "R C"]
    level: Float[Tensor, "R C"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


class Picture(NamedTuple):
    """A picture of several panels side by side under one caption.

    caption: text above the panels.
    kinds: names of the kinds of cells, for the legend; empty if there is only one kind.
    panels: the panels.
    line, column: meaning of each row and each column of a panel, such as "query" and "key".
    note: further text below the caption.
    """

    caption: str
    kinds: tuple[str, ...]
    panels: tuple[Panel, ...]
    line: str = "query"
    column: str = "key"
    note: str = ""


def kinds_in(picture: Picture) -> list[int]:
    """Return the numbers of the kinds of cells that occur in a picture, in ascending order.

    picture: the picture.
    """
    return sorted({int(n) for panel in picture.panels for n in panel.kind.unique()} - {0})


def grid(title: str, kind: Int[Tensor, "T S"], step: int = 1, *, first: tuple[int, int] = (0, 0)) -> Panel:
    """Return a panel that shows the kind of each pair of query and key.

    A cell covers `step` by `step` pairs and has the most frequent kind among them.

    title: title of the panel.
    kind: kind of each pair of query and key, from 1; 0 for none.
    step: pairs along a side of a cell.
    first: number of the first row and of the first column, for their names.
    """
    down, across = (-(-size // step) for size in kind.shape)
    padded = kind.new_full((down * step, across * step), -1)
    padded[: kind.shape[0], : kind.shape[1]] = kind
    cells = padded.view(down, step, across, step).transpose(1, 2).flatten(2)  # [R C step*step]
    counts = torch.stack([(cells == n).sum(-1) for n in range(1, max(2, int(kind.max()) + 1))])  # [n R C]
    filled, whole = counts.sum(0), (cells >= 0).sum(-1)
    names = [numbers(size, step, start) for start, size in zip(first, (down, across), strict=True)]
    return Panel(title, (counts.argmax(0) + 1) * (filled > 0), filled / whole, *names)


def masks_grid(masks: Sequence[Bool[Tensor, "T S"]], step: int = 1) -> Panel:
    """Return a panel without a title in which each mask is one kind of cell.

    If several masks are True for a pair, the first one counts.

    masks: masks of pairs, all of the same shape.
    step: pairs along a side of a cell.
    """
    kind = torch.zeros_like(masks[0], dtype=torch.long)
    for n, mask in enumerate(masks, start=1):
        kind = torch.where((kind == 0) & mask, n, kind)
    return grid("", kind, step)


def shades(title: str, level: Float[Tensor, "R C"], rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Panel:
    """Return a panel whose cells are all of one kind and filled to the given levels.

    title: title of the panel.
    level: filled part of each cell, from 0 to 1.
    rows, columns: names of the rows and columns; numbers from 0 by default.
    """
    names = (tuple(names or numbers(size)) for names, size in zip((rows, columns), level.shape, strict=True))
    return Panel(title, (level > 0).long(), level.clamp(0, 1), *names)


def of_most(level: Float[Tensor, "*S"], *dims: int) -> Float[Tensor, "*S"]:
    """Divide a tensor by its largest entry; from 0 to 1, it can fill the cells of a `Panel`.

    level: numbers, at least 0.
    dims: dimensions over which the maximum is taken; all by default.
    """
    return level / level.amax(dims or tuple(range(level.dim())), keepdim=True).clamp_min(1e-30)


def numbers(count: int, step: int = 1, start: int = 0) -> tuple[str, ...]:
    """Return the names of a panel's rows or columns: the first position in each cell.

    count: number of cells.
    step: positions per cell.
    start: first position.
    """
    return tuple(str(start + n * step) for n in range(count))


def of_cells(step: int, before: str = "; ") -> str:
    """Return the size of a cell in words for a note, or "" if a cell is a single pair of positions.

    step: positions along a side of a cell.
    before: text to put before these words.
    """
    return f"{before}a cell is {step} by {step}" if step > 1 else ""


def span(longest: int, length: int | None, cells: int) -> tuple[int, int]:
    """Return how many positions a picture shows, and how many positions each of its cells covers.

    Without a `length`, a cell covers the smallest power of two of positions with which `longest` fills at most a third
    of a side. The power stops growing when the picture covers 2,048 positions. A cell is up to twice as large if it
    then divides `longest`, because a stride between two cells would be drawn as a checkerboard.

    longest: the longest distance to show, such as a window.
    length: number of positions, or None.
    cells: number of cells along a side of the picture.
    """
    if length is not None:
        return length, -(-length // cells)
    step = 1
    while 3 * longest > cells * step and cells * step < MOST:
        step *= 2
    step = next((size for size in range(step, min(2 * step, MOST // cells + 1)) if longest % size == 0), step)
    return cells * step, step
