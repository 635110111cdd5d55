"""Diagrams as lines of text for a terminal."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from kinformer.pages.pictures.support.diagram import Circle, Diagram, Frame, Label, Stroke, texts
from kinformer.pages.pictures.support.terminal import STYLES

UP, RIGHT, DOWN, LEFT = 1, 2, 4, 8  # directions in which a line leaves the middle of a character
SIGNS = dict(enumerate(" ╵╶└╷│┌├╴┘─┴┐┤┬┼"))
DASHED = {"─": "╌", "│": "╎"}
Cell = tuple[str, int, bool]  # sign, kind, whether it is bold


class _Canvas:
    """A grid of characters; lines that meet in one character are joined."""

    def __init__(self, width: int, height: int):
        self.cells: list[list[Cell]] = [[(" ", 0, False)] * width for _ in range(height)]
        self.joints: dict[tuple[int, int], int] = {}

    def put(self, x: int, y: int, sign: str, kind: int = 0, bold: bool = False) -> None:
        if 0 <= y < len(self.cells) and 0 <= x < len(self.cells[0]):
            self.cells[y][x] = sign, kind, bold

    def join(self, x: int, y: int, directions: int, kind: int, dashed: bool = False) -> None:
        """Add a piece of a line that leaves a character in some directions."""
        self.joints[x, y] = self.joints.get((x, y), 0) | directions
        sign = SIGNS[self.joints[x, y]]
        self.put(x, y, DASHED.get(sign, sign) if dashed else sign, kind)

    def text(self, words: Label) -> None:
        for n, sign in enumerate(words.text):
            self.put(words.x + n, words.y, sign, words.kind, words.bold)


def diagram_lines(diagram: Diagram, width: int) -> Iterator[Text]:
    """Yield the lines of text that show a diagram in a terminal.

    diagram: the diagram.
    width: most characters in a line of the caption; the diagram may be wider.
    """
    for line in textwrap.wrap(diagram.caption, width):
        yield Text(line, style="bold")
    for line in textwrap.wrap(diagram.note, width):
        yield Text(line)
    if diagram.kinds:
        legend = Text()
        for n, name in enumerate(diagram.kinds):
            legend.append("■ ", style=_style(n + 1))
            legend.append(f"{name}   ")
        legend.rstrip()
        yield legend
    yield Text()
    for row in _drawn(diagram).cells:
        whole = Text()
        for sign, kind, bold in row:
            whole.append(sign, style=f"{'bold ' if bold else ''}{_style(kind)}".strip())
        whole.rstrip()
        yield whole


def _style(kind: int) -> str:
    return STYLES[(kind - 1) % len(STYLES)] if kind else ""


def _drawn(diagram: Diagram) -> _Canvas:
    canvas = _Canvas(diagram.width, diagram.height)
    for line in diagram.shapes:
        if isinstance(line, Stroke):
            _draw_line(canvas, line)
    for circle in diagram.shapes:
        if isinstance(circle, Circle):
            steps = max(16, round(24 * circle.radius))
            for n in range(steps):
                angle = 2 * math.pi * n / steps
                x, y = circle.x + 2 * circle.radius * math.cos(angle), circle.y - circle.radius * math.sin(angle)
                canvas.put(round(x), round(y), "·", circle.kind)
    for box in diagram.shapes:
        if isinstance(box, Frame):
            _draw_box(canvas, box)
    for line in diagram.shapes:
        if isinstance(line, Stroke) and line.arrow:
            _draw_head(canvas, line)
    for words in texts(diagram):
        canvas.text(words)
    return canvas


def _draw_box(canvas: _Canvas, box: Frame) -> None:
    right, bottom = box.x + box.width - 1, box.y + box.height - 1
    if box.height == 1:
        canvas.put(box.x, box.y, "[", box.kind)
        canvas.put(right, box.y, "]", box.kind)
        for x in range(box.x + 1, right):
            canvas.put(x, box.y, " ", box.kind)
        return
    for y in range(box.y + 1, bottom):  # a box hides what is behind it
        for x in range(box.x + 1, right):
            canvas.put(x, y, " ")
            canvas.joints.pop((x, y), None)
    for y, corners in ((box.y, (RIGHT | DOWN, DOWN | LEFT)), (bottom, (UP | RIGHT, UP | LEFT))):
        canvas.join(box.x, y, corners[0], box.kind)
        canvas.join(right, y, corners[1], box.kind)
        for x in range(box.x + 1, right):
            canvas.join(x, y, LEFT | RIGHT, box.kind, box.dashed)
    for y in range(box.y + 1, bottom):
        canvas.join(box.x, y, UP | DOWN, box.kind, box.dashed)
        canvas.join(right, y, UP | DOWN, box.kind, box.dashed)


def _draw_line(canvas: _Canvas, line: Stroke) -> None:
    for (x, y), (to_x, to_y) in zip(line.points, line.points[1:], strict=False):
        columns, rows = round(to_x) - round(x), round(to_y) - round(y)
        if not columns or not rows:
            _draw_straight(canvas, (round(x), round(y)), (round(to_x), round(to_y)), line)
            continue
        steps = max(abs(columns), abs(rows))
        slope = abs(rows) / abs(columns)
        sign = "·" if not 0.25 <= slope <= 1.5 else "╲" if columns * rows > 0 else "╱"
        for n in range(0, steps + 1, 2 if line.dashed else 1):
            canvas.put(round(x) + round(columns * n / steps), round(y) + round(rows * n / steps), sign, line.kind)


def _draw_straight(canvas: _Canvas, start: tuple[int, int], end: tuple[int, int], line: Stroke) -> None:
    (x, y), (to_x, to_y) = start, end
    forward, back = (RIGHT, LEFT) if to_x > x else (LEFT, RIGHT) if to_x < x else (DOWN, UP) if to_y > y else (UP, DOWN)
    steps = abs(to_x - x) + abs(to_y - y)
    for n in range(steps + 1):
        directions = (forward if n < steps else 0) | (back if n else 0)
        place = x + (to_x > x) * n - (to_x < x) * n, y + (to_y > y) * n - (to_y < y) * n
        canvas.join(*place, directions, line.kind, line.dashed)


def _draw_head(canvas: _Canvas, line: Stroke) -> None:
    points: Sequence[tuple[float, float]] = line.points
    (x, y), (to_x, to_y) = points[-2], points[-1]
    is_level = abs(to_x - x) > 2 * abs(to_y - y)
    sign = ("▶" if to_x > x else "◀") if is_level else "▼" if to_y > y else "▲"
    canvas.put(round(to_x), round(to_y), sign, line.kind)
