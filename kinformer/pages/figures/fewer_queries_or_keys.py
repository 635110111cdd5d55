"""The figure `fewer_queries_or_keys`: prototypes of queries, and compressed keys and values."""

from collections.abc import Iterator

from kinformer.pages.pictures.support.diagram import Diagram

LONG, SHORT = 5, 3  # heights of boxes for many and for few vectors


def draw() -> Iterator[Diagram]:
    """Yield a scheme of attention with prototype queries, and of attention with compressed keys."""
    yield _prototypes()
    yield _compressed()


def _prototypes() -> Diagram:
    diagram = Diagram(
        "fewer queries: prototypes read all keys in place of the queries",
        note="L is the length of the row and C the number of prototypes: means of clusters, or chosen queries.",
    )
    diagram.box(0, 0, 16, LONG, "queries\nL", 1)
    diagram.arrow((15.6, 2), (21, 2))
    diagram.box(22, 1, 16, SHORT, "prototypes: C", 2)
    diagram.arrow((37.6, 2), (43, 2))
    diagram.box(0, 6, 16, LONG, "keys, values\nL", 1)
    diagram.line((15.6, 8), (40, 8), (40, 3))
    diagram.arrow((40, 3), (43, 3))
    diagram.box(44, 1, 17, SHORT + 1, "softmax\nC × L scores", 2)
    diagram.arrow((60.6, 2), (66, 2))
    diagram.box(67, 1, 13, SHORT, "outputs: C", 2)
    diagram.arrow((73, 3.6), (73, 7))
    diagram.box(67, 8, 24, SHORT + 1, "outputs: L, copied\nor a mean for the rest", 1)
    return diagram


def _compressed() -> Diagram:
    diagram = Diagram(
        "fewer keys: all queries read a compressed memory of keys and values",
        note="M is the number of compressed keys: convolved, projected or pooled groups, or learned points.",
    )
    diagram.box(0, 0, 16, LONG, "queries\nL", 1)
    diagram.arrow((15.6, 2), (43, 2))
    diagram.box(0, 6, 16, LONG, "keys, values\nL", 1)
    diagram.arrow((15.6, 8), (21, 8))
    diagram.box(22, 7, 16, SHORT, "compressed: M", 2)
    diagram.line((37.6, 8), (40, 8), (40, 3))
    diagram.arrow((40, 3), (43, 3))
    diagram.box(44, 1, 17, SHORT + 1, "softmax\nL × M scores", 2)
    diagram.arrow((60.6, 2), (66, 2))
    diagram.box(67, 0, 13, LONG, "outputs\nL", 1)
    return diagram
