"""A picture of texts from a model with early exits: a token's colour shows how many layers it used."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinformer.pages.save_figure import save_figure

WIDE, TALL = 32, 40  # cells in a line, lines in a picture
CELL, LINE = 0.3, 0.42  # width and height of a cell in inches, so that letters are readable on a page
LONGEST = 6  # most letters of a token that are shown


Layered = tuple[Sequence[int], Sequence[int]]  # the token ids of a text, and the number of layers that each token used


def save_exit_layers(spelling: Any, texts: Sequence[Layered], depth: int, path: Path, title: str) -> None:
    """Draw the tokens of texts as cells that are lighter for tokens with fewer layers.

    A model with early exits has generated the texts. The picture has at most 40 lines of 32 tokens; the rest is left
    out.

    spelling: tokenizer that decodes one token id to bytes.
    texts: pairs of token ids and the number of layers that each token used.
    depth: number of layers of the model, which is the darkest colour.
    path: the file to write; its ending sets the format.
    title: text above the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = _lines(spelling, texts)
    width, tallest = max(len(line) for line in lines), len(lines)
    size = max(width * CELL, 5.0) + 1.2, max(tallest * LINE, 0.8) + 0.9
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    cells = [[count for _, count in line] + [float("nan")] * (width - len(line)) for line in lines]
    image = axes.imshow(cells, cmap="YlGnBu", vmin=0.5, vmax=depth + 0.5, aspect="auto")
    for y, line in enumerate(lines):
        for x, (text, count) in enumerate(line):
            colour = "white" if count > 0.6 * depth else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=12, color=colour, family="monospace")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=11)
    borders = [n + 0.5 for n in range(depth + 1)]
    figure.colorbar(image, ax=axes, ticks=range(1, depth + 1), label="layers", boundaries=borders)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font draws a box for a missing script
        save_figure(figure, path)
    pyplot.close(figure)


def _lines(spelling: Any, texts: Sequence[Layered]) -> list[list[tuple[str, int]]]:
    """Return lines of (text of a token, number of layers that it used); each text begins a new line."""
    lines: list[list[tuple[str, int]]] = []
    for tokens, layers in texts:
        pieces = [spelling.decode([token]).decode(errors="replace") for token in tokens]
        cells = [(_cell(piece), count) for piece, count in zip(pieces, layers, strict=True)]
        lines += [cells[first : first + WIDE] for first in range(0, len(cells), WIDE)]
    return lines[:TALL]


def _cell(piece: str) -> str:
    """Shorten a token to fit a cell, mark its spaces, and escape dollar signs, which would begin a formula."""
    text = "".join(letter if letter.isprintable() else "·" for letter in piece.replace("\n", "⏎").replace(" ", "␣"))
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")
