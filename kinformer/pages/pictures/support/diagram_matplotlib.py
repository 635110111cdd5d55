"""Diagrams drawn with Matplotlib, for image files."""

from typing import Any

from matplotlib.patches import Ellipse, Rectangle

from kinformer.pages.pictures.support.diagram import Circle, Diagram, Frame, Stroke, texts
from kinformer.pages.pictures.support.diagram_svg import kind_colour

INK, POINTS = "#1c2024", 9.0  # colour of lines without a kind, size of a letter
WIDE, HIGH = 0.0752, 0.16  # inches of a character of that size


def draw_diagram(axes: Any, diagram: Diagram) -> None:
    """Draw a diagram on Matplotlib axes.

    axes: the axes.
    diagram: the diagram.
    """
    axes.set(xlim=(-0.5, diagram.width + 0.5), ylim=(diagram.height + 0.2, -0.2), aspect=HIGH / WIDE)
    axes.set_axis_off()
    for shape in diagram.shapes:
        if isinstance(shape, Stroke):
            xs, ys = zip(*((x + 0.5, y + 0.5) for x, y in shape.points), strict=True)
            style = "--" if shape.dashed else "-"
            axes.plot(xs, ys, style, color=_colour(shape.kind), linewidth=1, zorder=1)
            if shape.arrow:
                ends = {"xytext": (xs[-2], ys[-2]), "xy": (xs[-1], ys[-1])}
                arrow = {"arrowstyle": "-|>", "color": _colour(shape.kind), "shrinkA": 0, "shrinkB": 0, "linewidth": 0}
                axes.annotate("", **ends, arrowprops=arrow, zorder=4)
        elif isinstance(shape, Circle):
            middle, size = (shape.x + 0.5, shape.y + 0.5), (4 * shape.radius, 2 * shape.radius)
            axes.add_patch(Ellipse(middle, *size, fill=False, edgecolor=_colour(shape.kind), alpha=0.6, zorder=2))
        elif isinstance(shape, Frame):
            _draw_box(axes, shape)
    for words in texts(diagram):
        font = {"family": "monospace", "fontsize": POINTS, "fontweight": "bold" if words.bold else "normal"}
        text = words.text.replace("$", r"\$")
        centre = words.x + len(words.text) / 2  # letters may be narrower than a column of the grid
        axes.text(centre, words.y + 0.5, text, color=_colour(words.kind), ha="center", va="center", zorder=5, **font)


def _colour(kind: int) -> str:
    return kind_colour(kind) if kind else INK


def _draw_box(axes: Any, box: Frame) -> None:
    inset = (0.5, 0.5) if box.height > 1 else (0.1, 0.06)
    place = (box.x + inset[0], box.y + inset[1]), box.width - 2 * inset[0], box.height - 2 * inset[1]
    if box.height > 1:
        axes.add_patch(Rectangle(*place, facecolor="white", edgecolor="none", zorder=2))
    if box.kind:
        axes.add_patch(Rectangle(*place, facecolor=_colour(box.kind), alpha=0.22, edgecolor="none", zorder=3))
    style = "--" if box.dashed else "-"
    axes.add_patch(Rectangle(*place, fill=False, edgecolor=_colour(box.kind), linestyle=style, zorder=3))
