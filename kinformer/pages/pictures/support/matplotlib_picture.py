"""Pictures as image files, drawn with Matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")

import torch  # noqa: E402  (the backend is chosen first)
from jaxtyping import Float  # noqa: E402
from matplotlib import colors, pyplot  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from torch import Tensor  # noqa: E402

from kinformer.pages.pictures.support.diagram import Diagram  # noqa: E402
from kinformer.pages.pictures.support.diagram_matplotlib import HIGH, WIDE, draw_diagram  # noqa: E402
from kinformer.pages.pictures.support.diagram_svg import kind_colour  # noqa: E402
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, kinds_in  # noqa: E402
from kinformer.pages.plots import COLOURS  # noqa: E402
from kinformer.pages.save_figure import save_figure  # noqa: E402

ACROSS, SIZE, PALE = 4, 3.6, 0.2  # most panels in a row, inches of a panel, darkness of the palest cell
LEGEND = 0.4  # inches of a legend
DARK_BLUE = "#1f3b70"


def save(title: str, pictures: Sequence[Picture | Diagram], path: Path) -> None:
    """Write pictures and diagrams into one image file, one below the other.

    title: text above all pictures.
    pictures: the pictures and diagrams.
    path: the file to write; its ending sets the format.
    """
    rows: list[tuple[Picture | Diagram, Sequence[Panel]]] = []
    for picture in pictures:
        if isinstance(picture, Diagram):
            rows.append((picture, ()))
        else:
            rows += [(picture, picture.panels[n : n + ACROSS]) for n in range(0, len(picture.panels), ACROSS)]
    heights = [_height_of_row(picture, panels) + LEGEND * bool(picture.kinds) for picture, panels in rows]
    width = max(6.4, *(_width_of_row(picture, panels) + 0.6 for picture, panels in rows))
    figure = pyplot.figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    begun: set[int] = set()
    for part, (picture, panels) in zip(parts, rows, strict=True):
        if isinstance(picture, Diagram):
            _draw_one_diagram(part, picture, width)
            continue
        first, last = id(picture) not in begun, panels[-1] is picture.panels[-1]
        begun.add(id(picture))
        _draw(part, picture, panels, width, first, last)
    save_figure(figure, path, 150)
    pyplot.close(figure)


def _draw_one_diagram(part: Any, diagram: Diagram, width: float) -> None:
    letters = int(width * 12.5)
    note = f"\n{fill(diagram.note, int(letters * 1.15))}" if diagram.note else ""
    part.suptitle(fill(diagram.caption, letters) + note, fontsize=9)
    draw_diagram(part.subplots(), diagram)
    if diagram.kinds:
        patches = [Patch(color=kind_colour(n + 1), label=name) for n, name in enumerate(diagram.kinds)]
        part.legend(handles=patches, loc="outside lower center", ncols=min(4, len(patches)), fontsize=8)


def _height_of_row(picture: Picture | Diagram, panels: Sequence[Panel]) -> float:
    return picture.height * HIGH + 0.7 if isinstance(picture, Diagram) else _height(panels)


def _width_of_row(picture: Picture | Diagram, panels: Sequence[Panel]) -> float:
    return picture.width * WIDE if isinstance(picture, Diagram) else SIZE * sum(_shares(panels))


def palette(kinds: int) -> list[str]:
    """Return a colour for each kind of cell in a picture.

    One kind is dark blue. Up to 8 kinds have the colours of diagrams and pages, and more kinds have up to 20 colours.

    kinds: number of kinds.
    """
    if kinds < 2:
        return [DARK_BLUE]
    if kinds <= len(COLOURS):
        return list(COLOURS[:kinds])
    pairs = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    named = [*pairs[::2], *pairs[1::2]]  # pale colours last, because a paler cell also means a less filled one
    return [colors.to_hex(named[n % len(named)]) for n in range(kinds)]


def shaded(panel: Panel, kinds: int) -> Float[Tensor, "R C 3"]:
    """Return the RGB colour of each cell of a panel.

    A cell has the colour of its kind. It is paler for a lower `level`, and white if it is empty.

    panel: the panel.
    kinds: number of kinds in the picture.
    """
    table = torch.tensor([(1.0, 1.0, 1.0), *(colors.to_rgb(colour) for colour in palette(kinds))])
    dark = torch.where(panel.level > 0, PALE + (1 - PALE) * panel.level, 0.0)[..., None].float()
    return 1 - dark * (1 - table[panel.kind])


def _draw(part: object, picture: Picture, panels: Sequence[Panel], width: float, first: bool, last: bool) -> None:
    letters = int(width * 12.5)
    if first:
        note = f"\n{fill(picture.note, int(letters * 1.15))}" if picture.note else ""
        part.suptitle(fill(picture.caption, letters) + note, fontsize=9)  # type: ignore[attr-defined]
    many = len(picture.kinds)
    ratios = _shares(panels)
    spare = max(0.01, ((width - 0.6) / SIZE - sum(ratios)) / 2)  # a narrow picture is centred, not stretched
    row = part.subplots(1, len(panels) + 2, squeeze=False, width_ratios=[spare, *ratios, spare])[0]  # type: ignore[attr-defined]
    for axes in (row[0], row[-1]):
        axes.set_axis_off()
    for axes, panel in zip(row[1:-1], panels, strict=True):
        axes.imshow(shaded(panel, many).numpy(), interpolation="nearest", aspect="equal")
        down, across = panel.kind.shape
        axes.set_xlabel(picture.column, fontsize=8)
        axes.set_ylabel(picture.line if down > 4 else "", fontsize=8)
        axes.set_title(fill(panel.title, 38), fontsize=8)
        for axis, names in ((axes.xaxis, panel.columns), (axes.yaxis, panel.rows)):
            every = max(1, -(-len(names) // 8)) if all(name.isdigit() for name in names) else 1
            axis.set_ticks(range(0, len(names), every), names[::every], fontsize=7)
        axes.set_xticks([n - 0.5 for n in range(1, across)], minor=True)
        axes.set_yticks([n - 0.5 for n in range(1, down)], minor=True)
        axes.grid(which="minor", color="#e3e3e3", linewidth=0.4)
        axes.tick_params(which="minor", length=0)
    if last and many:
        present = kinds_in(picture)
        patches = [Patch(color=palette(many)[n - 1], label=picture.kinds[n - 1]) for n in present]
        columns = 8 if len(present) > 12 else min(4, len(present))
        part.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=8)  # type: ignore[attr-defined]


def _shares(panels: Sequence[Panel]) -> list[float]:
    """Return the relative width of each panel: 1 up to 24 columns, and up to 1.6 with more columns."""
    return [min(1.6, max(1.0, panel.kind.shape[1] / 24)) for panel in panels]


def _height(panels: Sequence[Panel]) -> float:
    tallest = max(
        share * SIZE * panel.kind.shape[0] / panel.kind.shape[1]
        for panel, share in zip(panels, _shares(panels), strict=True)
    )
    return max(0.6, tallest) + 1.1
