"""Diagrams as SVG text for an HTML page; texts and lines take the colour of the page."""

from html import escape

from kinformer.pages.pictures.support.diagram import Circle, Diagram, Frame, Stroke, texts
from kinformer.pages.plots import COLOURS

WIDE, HIGH = 8, 16  # size of a character; twice as high as wide, so that circles are round
PAPER = "var(--paper, Canvas)"  # a box hides the lines behind it
FONT = "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:13px;white-space:pre"


def diagram_svg(diagram: Diagram) -> str:
    """Return a diagram as an SVG element, at most as wide as its container.

    diagram: the diagram; its caption describes it for readers who cannot see it.
    """
    width, height = diagram.width * WIDE, diagram.height * HIGH
    shapes = [_line(shape) for shape in diagram.shapes if isinstance(shape, Stroke)]
    shapes += [_circle(shape) for shape in diagram.shapes if isinstance(shape, Circle)]
    shapes += [_box(shape) for shape in diagram.shapes if isinstance(shape, Frame)]
    for words in texts(diagram):
        weight = ' font-weight="bold"' if words.bold else ""
        shapes.append(
            f'<text x="{words.x * WIDE}" y="{words.y * HIGH + 12}" textLength="{len(words.text) * WIDE}" '
            f'lengthAdjust="spacingAndGlyphs" fill="{_colour(words.kind)}"{weight}>{escape(words.text)}</text>'
        )
    return (
        f'<svg viewBox="-2 -2 {width + 4} {height + 4}" width="{width + 4}" role="img" '
        f'aria-label="{escape(diagram.caption)}" style="max-width:100%;height:auto;{FONT}">{"".join(shapes)}</svg>'
    )


def kind_colour(kind: int) -> str:
    """Return the colour of a kind.

    kind: number of the kind, from 1.
    """
    return COLOURS[(kind - 1) % len(COLOURS)]


def _colour(kind: int) -> str:
    return kind_colour(kind) if kind else "currentColor"


def _middle(point: tuple[float, float]) -> tuple[float, float]:
    return round((point[0] + 0.5) * WIDE, 1), round((point[1] + 0.5) * HIGH, 1)


def _line(line: Stroke) -> str:
    points = [_middle(point) for point in line.points]
    dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    drawn = f'<polyline points="{path}" fill="none" stroke="{_colour(line.kind)}" stroke-width="1.3"{dashes}/>'
    return drawn + (_head(points, line.kind) if line.arrow else "")


def _head(points: list[tuple[float, float]], kind: int) -> str:
    """Return a triangle at the last of some points, in the direction of the last piece."""
    (x, y), (to_x, to_y) = points[-2], points[-1]
    length = max(1e-9, ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5)
    ahead, aside = ((to_x - x) / length, (to_y - y) / length), (-(to_y - y) / length, (to_x - x) / length)
    tip = to_x + 3 * ahead[0], to_y + 3 * ahead[1]
    back = tip[0] - 8 * ahead[0], tip[1] - 8 * ahead[1]
    corners = [tip, *((back[0] + side * aside[0], back[1] + side * aside[1]) for side in (3.5, -3.5))]
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}" fill="{_colour(kind)}"/>'


def _circle(circle: Circle) -> str:
    x, y = _middle((circle.x, circle.y))
    return (
        f'<ellipse cx="{x:g}" cy="{y:g}" rx="{2 * circle.radius * WIDE:g}" ry="{circle.radius * HIGH:g}" fill="none" '
        f'stroke="{_colour(circle.kind)}" opacity=".6"/>'
    )


def _box(box: Frame) -> str:
    inset = (0.5, 0.5) if box.height > 1 else (0.1, 0.06)
    x, y = (box.x + inset[0]) * WIDE, (box.y + inset[1]) * HIGH
    width, height = (box.width - 2 * inset[0]) * WIDE, (box.height - 2 * inset[1]) * HIGH
    dashes = ' stroke-dasharray="4 3"' if box.dashed else ""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    back = "" if box.height == 1 else f'<rect {place} style="fill:{PAPER}"/>'
    fill = f'fill="{kind_colour(box.kind)}" fill-opacity=".22"' if box.kind else 'fill="none"'
    return f'{back}<rect {place} rx="3" {fill} stroke="{_colour(box.kind)}" stroke-width="1.2"{dashes}/>'
