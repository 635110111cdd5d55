"""Pictures as SVG text for an HTML page; texts take the colour of the page."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from kinformer.pages.pictures.support.picture_panels import Panel
from kinformer.pages.plots import COLOURS

PALE = 0.25  # opacity of the palest cell that is not empty


def panel_svg(panel: Panel, label: str, kinds: int = 1) -> str:
    """Return a panel as an SVG element without a fixed size, so that it fills the width of its container.

    A cell has the colour of its kind and is more transparent for a lower `level`. An empty cell shows the page.

    panel: the panel.
    label: description of the picture for readers who cannot see it.
    kinds: number of kinds of cells in the whole picture.
    """
    rows, columns = panel.kind.shape
    return (
        f'<svg viewBox="-.2 -.2 {columns + 0.4:g} {rows + 0.4:g}" role="img" aria-label="{escape(label)}" '
        f'shape-rendering="crispEdges">{_cells(panel, kinds)}</svg>'
    )


def labelled_panel_svg(panel: Panel, label: str, kinds: int = 1) -> str:
    """Return a panel as an SVG element with the names of its rows on the left and of its columns above.

    If there are many names, only some are written.

    panel: the panel.
    label: description of the picture for readers who cannot see it.
    kinds: number of kinds of cells in the whole picture.
    """
    rows, columns = panel.kind.shape
    size = max(0.7, columns / 40)  # of a letter, in cells
    left, above = 0.65 * size * max(map(len, panel.rows), default=0) + 0.6, 1.5 * size
    place = f'transform="translate({left:g} {above:g})" shape-rendering="crispEdges"'
    across = max(1, -(-int(size * 10 * max(map(len, panel.columns), default=1)) // 10))
    names = [
        f'<text x="{left - 0.4:g}" y="{above + n + 0.5 + size / 3:g}" text-anchor="end">{escape(name)}</text>'
        for n, name in enumerate(panel.rows)
        if n % max(1, round(size)) == 0
    ]
    names += [
        f'<text x="{left + n + 0.5:g}" y="{above - 0.4:g}" text-anchor="middle">{escape(name)}</text>'
        for n, name in enumerate(panel.columns)
        if n % across == 0
    ]
    return (
        f'<svg viewBox="0 0 {left + columns + 0.3:g} {above + rows + 0.3:g}" role="img" '
        f'aria-label="{escape(label)}" fill="currentColor" '
        f'font-size="{size:g}">{"".join(names)}<g {place}>{_cells(panel, kinds)}</g></svg>'
    )


def _cells(panel: Panel, kinds: int) -> str:
    """The cells of a panel and their frame, one unit for each cell."""
    rows, columns = panel.kind.shape
    cells = "".join(
        _run(x, y, width, kind, level, kinds)
        for y, (row, levels) in enumerate(zip(panel.kind.tolist(), panel.level.tolist(), strict=True))
        for x, width, kind, level in _runs(row, [round(level, 2) for level in levels])
    )
    frame = 'fill="none" stroke="currentColor" stroke-width=".15" opacity=".5"'
    return f'{cells}<rect width="{columns}" height="{rows}" {frame}/>'


def _runs(row: Sequence[int], levels: Sequence[float]) -> list[tuple[int, int, int, float]]:
    """Return the start, width, kind and level of each run of equal cells that are not empty."""
    runs, x = [], 0
    for (kind, level), group in groupby(zip(row, levels, strict=True)):
        width = len(list(group))
        if kind and level > 0:
            runs.append((x, width, kind, level))
        x += width
    return runs


def _run(x: int, y: int, width: int, kind: int, level: float, kinds: int) -> str:
    colour = COLOURS[0] if kinds < 2 else COLOURS[(kind - 1) % len(COLOURS)]
    opacity = PALE + (1 - PALE) * level
    faded = f' opacity="{opacity:.2g}"' if opacity < 1 else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="1" fill="{colour}"{faded}/>'
