"""Routes of the lines on the map of descent: around the boxes of members."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Point = tuple[float, float]
CLEAR = 7  # pixels between a line and the ends of the gap in which it runs
RADIUS = 4  # pixels of a rounded corner
LEAVE, ENTER = 5, -4  # height at which a line leaves its parent and enters its child, from the middle of the box
BOW = 8  # the same for a line that leaves its parent to the left, for a child of the same column
APART = 6  # least distance between the lines of two parents in one lane


class MemberBox(NamedTuple):
    """Place of a member on the map, in pixels.

    x, y: left end and middle.
    width: width of the box.
    column: number of its column, which is a year.
    band: number of its band, which is a family.
    """

    x: float
    y: float
    width: float
    column: int
    band: int


class Gap(NamedTuple):
    """A strip of the map without boxes, in which lines run.

    start, end: its ends across the lines, in pixels.
    """

    start: float
    end: float


class _Part(NamedTuple):
    """A part of a route that runs inside a gap: the kind and number of the gap, and the ends along the line."""

    kind: str  # "column": vertical, left of a column; "band": horizontal, above the boxes of a band
    number: int
    start: float
    end: float


def line_routes(
    boxes: Mapping[str, MemberBox], pairs: Iterable[tuple[str, str]], columns: Sequence[Gap], bands: Sequence[Gap]
) -> dict[tuple[str, str], list[Point]]:
    """Return the corners of the line of each pair of parent and child.

    A line has vertical and horizontal parts only, and passes no member.
    A line leaves its parent to the right, or to the left for a child of the same column. It runs in the gaps between
    columns, and above the boxes of the child's band. It reaches the child from the left. Lines of one parent share
    their ways; lines of different parents do not.

    boxes: the boxes of the members by name.
    pairs: names of parent and child of each line.
    columns: the gap on the left of each column.
    bands: the gap above the boxes of each band.
    """
    parts = {(a, b): _parts(boxes[a], boxes[b], boxes.values(), bands) for a, b in pairs}
    places = _places(parts, {"column": columns, "band": bands})
    routes = {}
    for (parent, child), ways in parts.items():
        source, target = boxes[parent], boxes[child]
        points = [_start(source, target)]
        for part in ways:
            place = places[part.kind, part.number, parent]
            x, y = points[-1]
            points.append((place, y) if part.kind == "column" else (x, place))
        y = target.y + ENTER
        routes[parent, child] = [*points, (points[-1][0], y), (target.x, y)]
    return routes


def path_of(points: Sequence[Point]) -> str:
    """Return the path of a line in SVG, with rounded corners and an arrow at its end.

    points: start, corners and end.
    """
    text = f"M{points[0][0]:g} {points[0][1]:g}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        radius = min(RADIUS, _distance(before, corner) / 2, _distance(corner, after) / 2)
        if radius < 0.5:  # the line goes straight on
            text += f"L{corner[0]:g} {corner[1]:g}"
            continue
        enter, leave = _towards(corner, before, radius), _towards(corner, after, radius)
        text += f"L{enter[0]:g} {enter[1]:g}Q{corner[0]:g} {corner[1]:g} {leave[0]:g} {leave[1]:g}"
    return f"{text}L{points[-1][0]:g} {points[-1][1]:g}m-4 -3l4 3l-4 3"


def _start(source: MemberBox, target: MemberBox) -> Point:
    is_same = source.column == target.column
    return (source.x, source.y + BOW) if is_same else (source.x + source.width, source.y + LEAVE)


def _parts(source: MemberBox, target: MemberBox, boxes: Iterable[MemberBox], bands: Sequence[Gap]) -> list[_Part]:
    """Return the gaps through which a line goes, in their order."""
    enter, y = ("column", target.column), _start(source, target)[1]
    between = range(source.column + 1, target.column)
    is_free = source.y == target.y and not any(box.column in between and box.y == source.y for box in boxes)
    if not between or is_free:
        return [_Part(*enter, *sorted((y, target.y + ENTER)))]
    gap = bands[target.band]
    leave = _Part("column", source.column + 1, min(y, gap.start), max(y, gap.end))
    return [leave, _Part("band", target.band, source.x, target.x), _Part(*enter, gap.start, target.y)]


def _places(
    parts: Mapping[tuple[str, str], Sequence[_Part]], gaps: Mapping[str, Sequence[Gap]]
) -> dict[tuple[str, int, str], float]:
    """Return the place of the lines of each parent across each gap that they use."""
    used: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (parent, _), ways in parts.items():
        for part in ways:
            used.setdefault((part.kind, part.number), {}).setdefault(parent, []).extend((part.start, part.end))
    places = {}
    for (kind, number), parents in used.items():
        gap, lanes = gaps[kind][number], _lanes({name: (min(ends), max(ends)) for name, ends in parents.items()})
        room = gap.end - gap.start - 2 * CLEAR
        for parent, lane in lanes.items():
            places[kind, number, parent] = gap.start + CLEAR + room * (lane + 0.5) / (max(lanes.values()) + 1)
    return places


def _lanes(spans: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """Return a lane for each parent, so that lines of two parents in a lane do not meet."""
    lanes: dict[str, int] = {}
    ends: list[float] = []  # of the last line in each lane
    for parent in sorted(spans, key=lambda name: spans[name]):
        start, end = spans[parent]
        lane = next((lane for lane, last in enumerate(ends) if last + APART < start), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]]
        lanes[parent] = lane
    return lanes


def _distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(start: Point, end: Point, length: float) -> Point:
    share = length / _distance(start, end)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
