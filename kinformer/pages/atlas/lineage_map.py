"""The map of descent: members by year and family, with a line from each parent to its child, as SVG."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from kinformer.pages.atlas.lineage import lineage
from kinformer.pages.atlas.lineage_routes import Gap, MemberBox, line_routes, path_of
from kinformer.pages.plots import colour

LETTER, PADDING = 6.65, 10  # width of a letter of a name, and of the space around the name
HIGH, STEP = 20, 25  # height of a box, and distance between boxes
GAP, TOP, LEFT = 32, 34, 8  # between columns, above the first band, and beside the first column
BAND = 26  # height of the heading of a band


def lineage_svg(years: Mapping[str, int]) -> str:
    """Return the map as an SVG element; every member is a link to its card.

    years: year of the paper of each member.
    """
    families = list(dict.fromkeys(descent.family for descent in lineage().values()))
    columns = sorted({years[name] for name in lineage()})
    width_of = {
        year: max(_width(name) for name in lineage() if years[name] == year) for year in columns
    }  # a column is as wide as its longest name
    starts, x = {}, float(LEFT)
    for year in columns:
        starts[year] = x
        x += width_of[year] + GAP
    boxes, bands, bottom = _place(families, columns, years, starts)
    total = x - GAP + LEFT
    gaps = [Gap(start - GAP, start) for start in starts.values()]
    headings = [Gap(begin, begin + BAND) for begin, _ in bands.values()]
    pairs = [(parent, child) for child, descent in lineage().items() for parent in descent.parents]
    lines = "".join(_lines(line_routes(boxes, pairs, gaps, headings)))
    label = f"Map of {len(boxes)} members by year and family. An arrow leads from each parent to its child."
    return (
        f'<svg id="map" viewBox="0 0 {total:g} {bottom:g}" width="{total:g}" height="{bottom:g}" role="group" '
        f'aria-label="{label}">\n'
        f"{''.join(_years(starts, width_of))}{''.join(_bands(bands, total))}{lines}"
        f"{''.join(_boxes(boxes, families))}{''.join(_headings(bands))}</svg>\n"
    )


def lineage_list() -> str:
    """Return the same descent as a nested list: the children of each member below it.

    A member with several parents stands below each of them; its own children stand only below the first one.
    """
    roots = [name for name, descent in lineage().items() if not descent.parents]
    return f'<ul class="tree">{"".join(_branch(name, None) for name in roots)}</ul>\n'


def _branch(name: str, above: str | None) -> str:
    descent = lineage()[name]
    is_repeated = above is not None and descent.parents[0] != above
    children = [] if is_repeated else [child for child, other in lineage().items() if name in other.parents]
    inside = f"<ul>{''.join(_branch(child, name) for child in children)}</ul>" if children else ""
    also = [parent for parent in descent.parents if parent != above]
    note = f" (also from {', '.join(also)})" if above is not None and also else ""
    change = "" if is_repeated else f": {escape(descent.change)}"
    return f'<li><a href="#member/{name}">{name}</a>{note}{change}{inside}</li>'


def _width(name: str) -> float:
    return LETTER * len(name) + PADDING


def _place(
    families: Sequence[str], columns: Sequence[int], years: Mapping[str, int], starts: Mapping[int, float]
) -> tuple[dict[str, MemberBox], dict[str, tuple[float, float]], float]:
    """Return the boxes of the members, the upper and lower end of each family's band, and the height of the map."""
    boxes: dict[str, MemberBox] = {}
    bands: dict[str, tuple[float, float]] = {}
    y = float(TOP)
    for band, family in enumerate(families):
        begin, rows = y, 1
        for column, year in enumerate(columns):
            boxed = [name for name, descent in lineage().items() if descent.family == family and years[name] == year]
            rows = max(rows, len(boxed))
            for row, name in enumerate(boxed):
                middle = begin + BAND + HIGH / 2 + row * STEP
                boxes[name] = MemberBox(starts[year], middle, _width(name), column, band)
        y = begin + BAND + rows * STEP + 6
        bands[family] = begin, y
    return boxes, bands, y


def _years(starts: Mapping[int, float], width_of: Mapping[int, float]) -> Iterator[str]:
    for year, x in starts.items():
        yield f'<text class="year" x="{x + width_of[year] / 2:g}" y="20" text-anchor="middle">{year}</text>\n'


def _bands(bands: Mapping[str, tuple[float, float]], width: float) -> Iterator[str]:
    for place, (begin, end) in enumerate(bands.values()):
        fill = colour(place)
        yield f'<rect class="band" y="{begin:g}" width="{width:g}" height="{end - begin:g}" fill="{fill}"/>\n'


def _headings(bands: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield the names of the families, which the page keeps in place while the map scrolls."""
    yield '<g class="families">'
    for place, (family, (begin, _)) in enumerate(bands.items()):
        yield f'<text x="{LEFT}" y="{begin + 17:g}" fill="{colour(place)}">{escape(family)}</text>\n'
    yield "</g>"


def _lines(routes: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> Iterator[str]:
    for (parent, child), points in routes.items():
        yield f'<path class="line" data-parent="{parent}" data-child="{child}" d="{path_of(points)}"/>\n'


def _boxes(boxes: Mapping[str, MemberBox], families: Sequence[str]) -> Iterator[str]:
    for name, box in boxes.items():
        edge = colour(families.index(lineage()[name].family))
        yield (
            f'<a href="#member/{name}" data-name="{name}" aria-label="{name}: {escape(lineage()[name].change)}">'
            f'<rect class="box" x="{box.x:g}" y="{box.y - HIGH / 2:g}" width="{box.width:g}" height="{HIGH}" rx="4" '
            f'stroke="{edge}"/><text class="name" x="{box.x + box.width / 2:g}" y="{box.y + 4:g}" '
            f'text-anchor="middle">{name}</text></a>\n'
        )
