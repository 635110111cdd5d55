"""Diagram: boxes, lines and words on a grid of characters, for a terminal, a file or a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Label(NamedTuple):
    """One line of text.

    x, y: column of the first character and line; 0, 0 is the upper left corner.
    text: the text.
    kind: number of its kind from 1, which sets the colour; 0 for the colour of the page.
    bold: whether it is bold.
    """

    x: int
    y: int
    text: str
    kind: int = 0
    bold: bool = False


class Frame(NamedTuple):
    """A rectangle with centred text.

    x, y: column and line of the upper left corner.
    width, height: size in characters and lines. In a terminal, a height of 1 is drawn with brackets and no frame.
    text: the text inside; "\\n" begins a line.
    kind: number of its kind from 1, which sets the colour; 0 for the colour of the page.
    dashed: whether the frame is dashed.
    """

    x: int
    y: int
    width: int
    height: int
    text: str = ""
    kind: int = 0
    dashed: bool = False


class Stroke(NamedTuple):
    """A line through points, perhaps with an arrow at its end.

    points: column and line of each point; fractions are allowed, such as for a curve.
    kind: number of its kind from 1, which sets the colour; 0 for the colour of the page.
    arrow: whether an arrow is at the last point.
    dashed: whether the line is dashed.
    """

    points: Sequence[tuple[float, float]]
    kind: int = 0
    arrow: bool = False
    dashed: bool = False


class Circle(NamedTuple):
    """A circle.

    x, y: column and line of the centre.
    radius: radius in lines; a line is as high as two characters are wide.
    kind: number of its kind from 1, which sets the colour; 0 for the colour of the page.
    """

    x: float
    y: float
    radius: float
    kind: int = 0


Shape = Label | Frame | Stroke | Circle


@dataclass
class Diagram:
    """A drawing of boxes, lines and words under a caption.

    caption: one line that says what is drawn.
    kinds: names of the kinds, for the legend; empty if colours have no meaning.
    note: further text below the caption.
    shapes: the shapes. Lines are drawn first, then circles and boxes, then words.
    """

    caption: str
    kinds: tuple[str, ...] = ()
    note: str = ""
    shapes: list[Shape] = field(default_factory=list)

    def words(self, x: int, y: int, text: str, kind: int = 0, *, bold: bool = False) -> None:
        """Add one line of text; the arguments are the fields of `Label`."""
        self.shapes.append(Label(x, y, text, kind, bold))

    def box(
        self, x: int, y: int, width: int, height: int, text: str = "", kind: int = 0, *, dashed: bool = False
    ) -> None:
        """Add a rectangle; the arguments are the fields of `Frame`."""
        self.shapes.append(Frame(x, y, width, height, text, kind, dashed))

    def line(self, *points: tuple[float, float], kind: int = 0, arrow: bool = False, dashed: bool = False) -> None:
        """Add a line; the arguments are the fields of `Stroke`."""
        self.shapes.append(Stroke(points, kind, arrow, dashed))

    def arrow(self, *points: tuple[float, float], kind: int = 0, dashed: bool = False) -> None:
        """Add a line with an arrow at its last point; the arguments are the fields of `Stroke`."""
        self.shapes.append(Stroke(points, kind, True, dashed))

    def circle(self, x: float, y: float, radius: float, kind: int = 0) -> None:
        """Add a circle; the arguments are the fields of `Circle`."""
        self.shapes.append(Circle(x, y, radius, kind))

    @property
    def width(self) -> int:
        """Number of characters in a line."""
        return 1 + max((_right_bottom(shape)[0] for shape in self.shapes), default=-1)

    @property
    def height(self) -> int:
        """Number of lines."""
        return 1 + max((_right_bottom(shape)[1] for shape in self.shapes), default=-1)


def words_of(box: Frame) -> list[Label]:
    """Return the lines of text of a box at their places, in the middle of the box.

    box: the box.
    """
    lines = box.text.split("\n") if box.text else []
    top = box.y + (box.height - len(lines)) // 2
    return [
        Label(box.x + (box.width - len(line)) // 2, top + n, line, box.kind if box.height == 1 else 0)
        for n, line in enumerate(lines)
    ]


def texts(diagram: Diagram) -> list[Label]:
    """Return every line of text of a diagram, also inside boxes.

    diagram: the diagram.
    """
    every: list[Label] = []
    for shape in diagram.shapes:
        every += [shape] if isinstance(shape, Label) else words_of(shape) if isinstance(shape, Frame) else []
    return every


def _right_bottom(shape: Shape) -> tuple[int, int]:
    """Return the last column and the last line of a shape."""
    match shape:
        case Label(x, y, text):
            return x + len(text) - 1, y
        case Frame(x, y, width, height):
            return x + width - 1, y + height - 1
        case Circle(x, y, radius):
            return round(x + 2 * radius), round(y + radius)
        case Stroke(points):
            return round(max(x for x, _ in points)), round(max(y for _, y in points))
