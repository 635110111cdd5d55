"""The figure `spalm`: a body with a short memory, a datastore, and the gate that mixes both."""

from collections.abc import Iterator

from kinformer.pages.pictures.support.diagram import Diagram

LEARNED, CONSTANT = 1, 2


def draw() -> Iterator[Diagram]:
    """Yield the path of one token through SPALM."""
    diagram = Diagram(
        "SPALM at one token: the body's state h, the looked-up mean m, and the gate g between them",
        kinds=("learned", "constant, no gradient"),
        note="Dashed: without gradient. The datastore was built once by the frozen model.",
    )
    diagram.box(0, 10, 14, 3, "tokens")
    diagram.box(22, 0, 26, 3, "memory (Transformer-XL)", CONSTANT)
    diagram.box(22, 5, 26, 3, "body", LEARNED)
    diagram.box(22, 16, 26, 3, "frozen language model", CONSTANT)
    diagram.box(53, 5, 21, 3, "g = sig(w_g . h)", LEARNED)
    diagram.box(53, 16, 21, 3, "key: next word", CONSTANT)
    diagram.box(79, 0, 21, 3, "p = softmax(W z)", LEARNED)
    diagram.box(79, 5, 21, 3, "z = (1-g) m + g h", LEARNED)
    diagram.box(79, 10, 21, 4, "m = sum_i a_i y_i\na = softmax(y . h)", LEARNED)
    diagram.box(79, 16, 21, 3, "y_i: rows of W", LEARNED)
    diagram.arrow((13, 11), (18, 11), (18, 6), (21.4, 6))
    diagram.arrow((13, 11), (18, 11), (18, 17), (21.4, 17))
    diagram.arrow((35, 2), (35, 4.49), dashed=True)
    diagram.arrow((47, 6), (52.4, 6))
    diagram.arrow((49, 6), (49, 12), (78.4, 12))
    diagram.arrow((49, 6), (49, 3), (85, 3), (85, 4.49))
    diagram.words(51, 2, "h")
    diagram.words(51, 11, "h")
    diagram.arrow((73, 6), (78.4, 6))
    diagram.arrow((47, 17), (52.4, 17), dashed=True)
    diagram.words(53, 15, "datastore: k nearest")
    diagram.arrow((73, 17), (78.4, 17), dashed=True)
    diagram.arrow((89, 16), (89, 13.51))
    diagram.arrow((89, 10), (89, 7.51))
    diagram.arrow((94, 5), (94, 2.51))
    yield diagram
