"""Pictures as text for a terminal: two characters per cell, with panels side by side."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.text import Text

from kinformer.pages.pictures.support.picture_panels import Panel, Picture, kinds_in

SHADES = ("░░", "▒▒", "▓▓", "██")
GLYPHS = ("██", "▒▒", "oo", "++", "xx", "::")
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
STYLES = ("bright_blue", "dark_orange", "green3", "magenta", "cyan", "yellow3", "red3", "grey62")
EDGES, HALF = (0.2, 0.5, 0.95), 0.5  # filled shares from which a cell is drawn darker
NOTHING, GAP, EVERY = " ·", "   ", 4
NAMED = 40  # most rows that all have their name


def lines(picture: Picture, width: int) -> Iterator[Text]:
    """Yield the lines of text that show a picture in a terminal.

    picture: the picture.
    width: most characters in a line; a single panel may be wider.
    """
    for line in textwrap.wrap(picture.caption, width):
        yield Text(line, style="bold")
    for line in textwrap.wrap(picture.note, width):
        yield Text(line)
    yield Text(f"each row is a {picture.line}, each column a {picture.column}", style="dim")
    if 0 < len(picture.kinds) <= len(GLYPHS):
        yield _legend(picture)
    elif not picture.kinds and any(bool(((panel.level > 0) & (panel.level < 1)).any()) for panel in picture.panels):
        yield Text(f"from less to more: {' '.join(SHADES)}")
    for row in _rows(picture.panels, width):
        yield Text()
        blocks = [list(_block(panel, len(picture.kinds))) for panel in row]
        sizes = [max(line.cell_len for line in block) for block in blocks]
        tallest = max(len(block) for block in blocks)
        for block in blocks:  # align the grids: shorter titles get empty lines above
            block[:0] = [Text()] * (tallest - len(block))
        for parts in zip_longest(*blocks, fillvalue=Text()):
            whole = Text()
            for part, size in zip(parts, sizes, strict=True):
                whole.append_text(part)
                whole.append(" " * (size - part.cell_len) + GAP)
            whole.rstrip()
            yield whole


def glyph(kind: int, kinds: int, level: float = 1.0) -> str:
    """Return the two characters that show a cell in a terminal.

    kind: number of the cell's kind, from 1; 0 for an empty cell.
    kinds: number of kinds in the picture; with more than 6, cells show digits and letters.
    level: filled share of the cell, from 0 to 1.
    """
    if kind == 0:
        return NOTHING
    if kinds > len(GLYPHS):
        return LETTERS[(kind - 1) % len(LETTERS)] * 2
    if kinds > 1:
        return GLYPHS[kind - 1] if level >= HALF else f" {GLYPHS[kind - 1][0]}"
    return SHADES[sum(level >= edge for edge in EDGES)]


def _rows(panels: Sequence[Panel], width: int) -> Iterator[list[Panel]]:
    row: list[Panel] = []
    used = 0
    for panel in panels:
        size = _margin(panel) + 2 * panel.kind.shape[1] + len(GAP)
        if row and used + size > width + len(GAP):
            yield row
            row, used = [], 0
        row.append(panel)
        used += size
    yield row


def _margin(panel: Panel) -> int:
    return max((len(name) for name in panel.rows), default=0) + 1


def _block(panel: Panel, kinds: int) -> Iterator[Text]:
    margin, across = _margin(panel), panel.kind.shape[1]
    for line in textwrap.wrap(panel.title, 2 * across) if panel.title else ():
        yield Text(" " * margin + line, style="italic")
    yield Text(" " * margin + _scale(panel.columns), style="dim")
    every = 1 if len(panel.rows) <= NAMED or not all(name.isdigit() for name in panel.rows) else EVERY
    for n, (kind, level) in enumerate(zip(panel.kind.tolist(), panel.level.tolist(), strict=True)):
        name = panel.rows[n] if n < len(panel.rows) and n % every == 0 else ""
        row = Text(f"{name:>{margin - 1}} ")
        for number, full in zip(kind, level, strict=True):
            style = "dim" if number == 0 else STYLES[(number - 1) % len(STYLES)] if kinds > 1 else ""
            row.append(glyph(number, kinds, full), style=style)
        row.rstrip()
        yield row


def _scale(names: Sequence[str]) -> str:
    """Return a line with the names of every second column, or of fewer columns if the names are long."""
    longest = max((len(name) + 1 for name in names), default=1)
    line, every = "", 2 if longest <= EVERY and len(names) <= NAMED else EVERY * -(-longest // (2 * EVERY))
    for n, name in enumerate(names):
        if n % every == 0:
            line = line.ljust(2 * n) + name
    return line


def _legend(picture: Picture) -> Text:
    line, kinds = Text(), len(picture.kinds)
    for n in kinds_in(picture):
        line.append(glyph(n, kinds), style=STYLES[(n - 1) % len(STYLES)] if kinds > 1 else "")
        line.append(f" {picture.kinds[n - 1]}   ")
    line.rstrip()
    return line
