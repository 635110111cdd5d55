"""Who reads whom: a pattern in the pieces that are read together, or the patterns of layers and heads side by side."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from kinformer.attend.parts import parts
from kinformer.core.layout import Layout
from kinformer.core.pattern import Heads, Pattern, pairs
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.mechanisms.merged import Merged
from kinformer.pages.pictures.support.layers import Call, by_content, joined, reading
from kinformer.pages.pictures.support.panel import CELLS, MOST, NARROW, Panel, Picture, grid, layers_of_kinds, span
from kinformer.pages.pictures.support.spelled import longest, spelled

HEADS, PANELS = 4, 6  # the most that are drawn
FULL, EMPTIER = 0.7, 0.9


class Drawn(NamedTuple):
    """A panel to be: sets of pairs over the same heads, each with a name, which together are read."""

    title: str
    sets: list[tuple[str, Pattern]]
    heads: range = range(1)


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The pieces of a pattern; or of a module what each layer reads, where it is known before any content."""
    if isinstance(example, Pattern):
        pieces = parts(example, 1024)
        named = [(_told(one.layout), one.where) for one in pieces] if len(pieces) > 1 else [("", example)]
        yield _picture(f"who reads whom: {spelled(example)}", [Drawn("", named, range(HEADS))], length, titled=False)
        return
    panels: list[Drawn] = []
    others = (
        set()
        if not isinstance(example, nn.Module)
        else {
            inside
            for one in example.modules()
            if isinstance(one, GlobalNodes | GlobalEnds | Merged)
            for inside in one.modules()
        }
    )
    for places, found in reading(example, others):
        known = [one for one in found if one.itself and one.mechanism not in others and not by_content(one.mechanism)]
        by_heads: dict[range, list[Call]] = {}
        for one in known:
            by_heads.setdefault(one.heads, []).append(one)
        for heads, of in by_heads.items():
            title = joined(places)
            if len(by_heads) > 1:
                title = f"{title} {_counted(heads)}".strip()
            panels.append(Drawn(title, [(one.name if len(of) > 1 else "", one.pattern) for one in of], heads))
    for names in dict.fromkeys(tuple(name for name, _ in one.sets) for one in panels):
        alike = [one for one in panels if tuple(name for name, _ in one.sets) == names]
        yield _picture(f"who reads whom{', in pieces: ' + ' and '.join(names) if any(names) else ''}", alike, length)


def side_by_side(patterns: list[Pattern], length: int | None) -> Picture:
    """Several patterns, a panel each, all to one scale."""
    return _picture("who reads whom", [Drawn("", [("", one)]) for one in patterns], length)


def _picture(caption: str, drawn: list[Drawn], length: int | None, *, titled: bool = True) -> Picture:
    drawn = [one for turn in drawn for one in _by_head(turn)]
    cells = CELLS if len(drawn) == 1 else NARROW
    size, step = span(max(longest(one) for turn in drawn for _, one in turn.sets), length, cells)
    if length is None:
        size, step = _thinned(drawn, size, step)
    panels = tuple(_panel(one, size, step, titled or len(drawn) > 1) for one in drawn[:PANELS])
    names = tuple(name for name, _ in drawn[0].sets)
    if any(bool(_often(one, size).any()) for one in drawn[:PANELS]):
        names += ("both" if len(names) == 2 else "more than one",)
    note = f"{size} positions; a cell is {step} by {step}, darker where more of its pairs are read" if step > 1 else ""
    if len(drawn) > PANELS:
        note += f"{'; ' if note else ''}{PANELS} of {len(drawn)} that differ are drawn"
    return Picture(caption, names if any(names) else (), panels, note=note)


def _thinned(drawn: list[Drawn], size: int, step: int) -> tuple[int, int]:
    """More positions to a cell, as long as that empties a drawing that is nearly full."""

    def full(size: int) -> float:
        return max(_share(one, size) for one in drawn[:PANELS])

    while full(size) > FULL and 2 * size <= MOST // 2 and min(full(2 * size), full(4 * size)) < EMPTIER * full(size):
        size, step = 2 * size, 2 * step
    # a table of blocks ends somewhere, and what is behind it is empty
    while step > 1 and not any(_read(one, size)[size // 2 :].any() for one in drawn[:PANELS]):
        size, step = size // 2, step // 2
    return size, step


def _read(drawn: Drawn, size: int) -> Bool[Tensor, "T T"]:
    """All pairs that are read."""
    return torch.stack([mask_of(pattern, size, drawn.heads)[0] for _, pattern in drawn.sets]).any(0)


def _often(drawn: Drawn, size: int) -> Bool[Tensor, "T T"]:
    """The pairs that are read by more than one of the sets."""
    return torch.stack([mask_of(pattern, size, drawn.heads)[0] for _, pattern in drawn.sets]).sum(0) > 1


def _share(drawn: Drawn, size: int) -> float:
    """Which part is read of all pairs, or of those that are not ahead where none of these is read."""
    read = _read(drawn, size)
    all_ = size * size if bool(read.triu(1).any()) else size * (size + 1) / 2
    return float(read.sum()) / all_


def _counted(heads: range) -> str:
    return f"head {heads.start}" if len(heads) == 1 else f"heads {heads.start}-{heads.stop - 1}"


def _panel(drawn: Drawn, size: int, step: int, titled: bool) -> Panel:
    masks = [mask_of(pattern, size, drawn.heads)[0] for _, pattern in drawn.sets]
    kinds = torch.where(_often(drawn, size), len(masks) + 1, layers_of_kinds(masks))
    title = drawn.title
    if titled:
        said = "; ".join(f"{name} {spelled(pattern)}".strip() for name, pattern in drawn.sets)
        title = f"{title}: {said}" if title else said
    return grid(title, kinds, step)


def _by_head(drawn: Drawn) -> list[Drawn]:
    """One for each of the first heads that reads otherwise than those before it."""
    seen: list[Tensor] = []
    found: list[Drawn] = []
    heads = list(drawn.heads)[:HEADS]
    for head in heads:
        masks = torch.cat([mask_of(pattern, 2 * CELLS, range(head, head + 1)) for _, pattern in drawn.sets])
        if not any(torch.equal(masks, one) for one in seen):
            seen.append(masks)
            found.append(drawn._replace(heads=range(head, head + 1)))
    if len(found) == 1:
        return found
    return [_of_head(one) for one in found]


def _of_head(drawn: Drawn) -> Drawn:
    """Under the head's name; of patterns that are listed by head, its own."""
    head = drawn.heads.start
    sets = [
        (name, one.patterns[head % len(one.patterns)] if isinstance(one, Heads) else one) for name, one in drawn.sets
    ]
    return drawn._replace(title=f"{drawn.title} head {head}".strip(), sets=sets)


def mask_of(pattern: Pattern, size: int, heads: range) -> Bool[Tensor, "H T T"]:
    """A pattern over positions 0 .. size - 1."""
    at = torch.arange(size)[None, None]
    return pairs(pattern, at, at, heads)[0].expand(len(heads), size, size)


def _told(layout: Layout) -> str:
    return repr(layout).replace("=inf", "=all")
