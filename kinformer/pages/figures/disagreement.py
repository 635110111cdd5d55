"""The figure `disagreement`: places at which the three terms compare two heads."""

from collections.abc import Iterator

from kinformer.pages.pictures.support.diagram import Diagram

KINDS = ("head 1", "head 2", "loss term, in training only")


def draw() -> Iterator[Diagram]:
    """Yield two heads with the three terms between them."""
    diagram = Diagram(
        "two heads of a layer, and the terms that compare them",
        kinds=KINDS,
        note="Dashed lines lead to the compared vectors and weights. All pairs of heads are compared.",
    )
    for h, y in ((1, 0), (2, 14)):
        low = h == 2
        values = y + 4 if low else y - 0
        weights = y - 0 if low else y + 4
        diagram.words(0, y + 3, f"head {h}", h, bold=True)
        diagram.box(12, weights, 18, 3, f"Q{h}, K{h}", h)
        diagram.box(40, weights, 14, 3, f"weights A{h}", h)
        diagram.box(12, values, 18, 3, f"values V{h}", h)
        diagram.box(68, weights, 16, 3, f"output O{h}", h)
        diagram.arrow((29, weights + 1), (39.4, weights + 1), kind=h)
        diagram.arrow((53, weights + 1), (67.4, weights + 1), kind=h)
        turn = values + 1
        diagram.arrow((29, turn), (76, turn), (76, weights - 0.6 if not low else weights + 2.6), kind=h)
    for x, name, above, below in ((21, "D_subspace", 2, 18), (47, "D_position", 6, 14), (73, "D_output", 6, 14)):
        left = x - 7
        diagram.box(left, 9, 14, 3, name, 3)
        if name != "D_subspace":
            diagram.arrow((x, above), (x, 8.4), kind=3, dashed=True)
            diagram.arrow((x, below), (x, 11.6), kind=3, dashed=True)
    diagram.arrow((12, 1), (9, 1), (9, 10), (13.4, 10), kind=3, dashed=True)
    diagram.arrow((12, 19), (9, 19), (9, 10), (13.4, 10), kind=3, dashed=True)
    yield diagram
