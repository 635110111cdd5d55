"""A picture of written texts, each token on the colour of the layers that it took."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinformer.cli.support.writing import Written
from kinformer.pages.saved import saved

WIDE, TALL = 32, 40  # cells of a line, and lines of a picture
CELL, LINE = 0.3, 0.42  # inches, so that letters can be read on a page
LONGEST = 6  # letters of a token that are shown


def draw(spelled: Any, written: Sequence[Written], most: int, path: Path, title: str) -> None:
    """Draw the begin of each text, as much as there is room for; a light cell is a token that left early."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = _lines(spelled, written)
    width, tallest = max(len(line) for line in lines), len(lines)
    size = max(width * CELL, 5.0) + 1.2, max(tallest * LINE, 0.8) + 0.9
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    cells = [[took for _, took in line] + [float("nan")] * (width - len(line)) for line in lines]
    shown = axes.imshow(cells, cmap="YlGnBu", vmin=0.5, vmax=most + 0.5, aspect="auto")
    for y, line in enumerate(lines):
        for x, (text, took) in enumerate(line):
            colour = "white" if took > 0.6 * most else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=12, color=colour, family="monospace")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=11)
    borders = [n + 0.5 for n in range(most + 1)]
    figure.colorbar(shown, ax=axes, ticks=range(1, most + 1), label="layers", boundaries=borders)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a font has not every script: a box stands there
        saved(figure, path)
    pyplot.close(figure)


def _lines(spelled: Any, written: Sequence[Written]) -> list[list[tuple[str, int]]]:
    """Cells of what a token spells and what it took, in lines; a text begins a new one."""
    found: list[list[tuple[str, int]]] = []
    for one in written:
        pieces = [spelled.decode([token]).decode(errors="replace") for token in one.tokens]
        cells = [(_cell(piece), took) for piece, took in zip(pieces, one.layers, strict=True)]
        found += [cells[first : first + WIDE] for first in range(0, len(cells), WIDE)]
    return found[:TALL]


def _cell(piece: str) -> str:
    """What fits a cell, with marks for what is not seen; a dollar would begin a formula."""
    seen = "".join(letter if letter.isprintable() else "·" for letter in piece.replace("\n", "⏎").replace(" ", "␣"))
    return (seen if len(seen) <= LONGEST else f"{seen[: LONGEST - 1]}…").replace("$", r"\$")
