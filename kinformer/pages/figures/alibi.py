"""The figure `alibi`: penalties of two heads for all pairs, and factors of eight heads."""

import math
from collections.abc import Iterator

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram

HEADS, SIZE, CELL = 8, 5, 8
SHOWN = (0, 2)  # heads whose penalties are listed
LEFT, BOTTOM, ACROSS, FURTHEST = 10, 15, 1.25, 64


def draw() -> Iterator[Diagram]:
    """Yield the penalties of two heads for all pairs of five tokens, and the factors of eight heads."""
    yield _matrices()
    yield _curves()


def _matrices() -> Diagram:
    slopes = kf.ALiBi(HEADS).slopes
    diagram = Diagram(
        f"numbers added to the scores by heads {SHOWN[0] + 1} and {SHOWN[1] + 1} of {HEADS}; rows are queries",
        kinds=("the token itself", "earlier key", "later key: not read"),
        note="They are fixed: nothing is learned. Along a diagonal the distance and the number are the same.",
    )
    for place, head in enumerate(SHOWN):
        left = 10 + place * (SIZE * CELL + 6)
        diagram.words(left, 0, f"head {head + 1}: m = {slopes[head]:g}", bold=True)
        for row in range(SIZE):
            y = 2 + 3 * row
            if not place:
                diagram.words(0, y + 1, f"query {row}")
            for key in range(SIZE):
                far = row - key
                text = f"{-slopes[head] * far or 0.0:g}" if far >= 0 else ""
                diagram.box(left + CELL * key, y, CELL, 3, text, 1 if far == 0 else 2 if far > 0 else 3, dashed=far < 0)
        for key in range(SIZE):
            diagram.words(left + CELL * key + 3, 2 + 3 * SIZE, str(key))
    diagram.words(0, 2 + 3 * SIZE, "key")
    return diagram


def _curves() -> Diagram:
    slopes = kf.ALiBi(HEADS).slopes
    diagram = Diagram(
        "factor exp(-m distance) of a weight, before normalisation, in each of 8 heads",
        kinds=tuple(f"head {n}: m = 1/{round(1 / m)}" for n, m in enumerate(slopes, 1)),
        note="Head 1 reads only a few tokens back. Head 8 hardly prefers near tokens.",
    )
    diagram.line((LEFT, 0), (LEFT, BOTTOM), (LEFT + ACROSS * FURTHEST + 3, BOTTOM))
    for value in (0, 0.5, 1):
        diagram.words(LEFT - 5, round(BOTTOM - 14 * value), f"{value:g}")
    for kind, slope in enumerate(slopes, 1):
        points = [(LEFT + ACROSS * n, BOTTOM - 14 * math.exp(-slope * n)) for n in range(FURTHEST + 1)]
        diagram.line(*points, kind=kind)
    for n in range(0, FURTHEST + 1, 8):
        diagram.words(round(LEFT + ACROSS * n), BOTTOM + 1, str(n))
    diagram.words(LEFT + 70, BOTTOM + 2, "distance")
    return diagram
