"""Panel and Picture: what is drawn, before it is known whether in a terminal or in a file."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CELLS, NARROW = 24, 16  # along a side: of a panel by itself, of a panel in a row of several
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
    filled, whole = counts.sum(0), (cells >= 0).sum(-1)
    names = [numbers(size, step, start) for start, size in zip(first, (down, across), strict=True)]
    return Panel(title, (counts.argmax(0) + 1) * (filled > 0), filled / whole, *names)


def masks_grid(masks: Sequence[Bool[Tensor, "T S"]], step: int = 1) -> Panel:
    """A panel without a title whose kinds are masks; a pair of several masks is of the first."""
    kind = torch.zeros_like(masks[0], dtype=torch.long)
    for n, mask in enumerate(masks, start=1):
        kind = torch.where((kind == 0) & mask, n, kind)
    return grid("", kind, step)


def shades(title: str, level: Float[Tensor, "R C"], rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Panel:
    """Numbers from 0 to 1 as a panel of one kind; without names, rows and columns are counted from 0."""
    names = (tuple(names or numbers(size)) for names, size in zip((rows, columns), level.shape, strict=True))
    return Panel(title, (level > 0).long(), level.clamp(0, 1), *names)


def of_most(level: Float[Tensor, "*S"], *dims: int) -> Float[Tensor, "*S"]:
    """Numbers as shares of the largest, over all dimensions or over these."""
    return level / level.amax(dims or tuple(range(level.dim())), keepdim=True).clamp_min(1e-30)


def numbers(count: int, step: int = 1, start: int = 0) -> tuple[str, ...]:
    """The names of positions, or of the first positions of cells."""
    return tuple(str(start + n * step) for n in range(count))


def of_cells(step: int, before: str = "; ") -> str:
    """How large a cell is, in words; nothing for a cell of a single pair."""
    return f"{before}a cell is {step} by {step}" if step > 1 else ""


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
