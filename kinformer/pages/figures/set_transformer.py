"""The figure `set_transformer`: block diagrams of MAB, SAB, ISAB, PMA and the whole model."""

from collections.abc import Iterator

from kinformer.pages.pictures.support.diagram import Diagram

KINDS = ("set elements", "learned vectors", "attention")


def draw() -> Iterator[Diagram]:
    """Yield block diagrams of MAB, of ISAB and PMA, and of the whole model."""
    yield _mab()
    yield _isab()
    yield _pma()
    yield _model()


def _mab() -> Diagram:
    diagram = Diagram(
        "MAB(X, Y): the elements of X read the elements of Y",
        kinds=KINDS,
        note="SAB(X) is MAB(X, X). LN is layer norm, and rFF is the same feed-forward layer for each element.",
    )
    diagram.box(0, 3, 7, 3, "X", 1)
    diagram.box(0, 8, 7, 3, "Y", 1)
    diagram.arrow((6.6, 4), (18, 4))
    diagram.words(11, 3, "queries")
    diagram.box(19, 3, 14, 3, "multi-head", 3)
    diagram.line((6.6, 9), (26, 9))
    diagram.arrow((26, 9), (26, 6.3))
    diagram.words(8, 8, "keys, values")
    diagram.arrow((32.6, 4), (36, 4))
    diagram.box(37, 3, 5, 3, "+")
    diagram.arrow((9, 3.7), (9, 1), (39, 1), (39, 2.3))
    diagram.words(22, 0, "add X")
    diagram.arrow((41.6, 4), (45, 4))
    diagram.box(46, 3, 6, 3, "LN")
    diagram.arrow((51.6, 4), (60, 4))
    diagram.words(54, 3, "H")
    diagram.box(61, 3, 7, 3, "rFF")
    diagram.arrow((67.6, 4), (71, 4))
    diagram.box(72, 3, 5, 3, "+")
    diagram.arrow((57, 3.7), (57, 1), (74, 1), (74, 2.3))
    diagram.words(63, 0, "add H")
    diagram.arrow((76.6, 4), (80, 4))
    diagram.box(81, 3, 6, 3, "LN")
    diagram.arrow((86.6, 4), (91, 4))
    diagram.words(93, 4, "output")
    return diagram


def _isab() -> Diagram:
    diagram = Diagram(
        "ISAB(X): m inducing points read the set, then the set reads the points",
        kinds=KINDS,
        note="Two attentions of L × m scores replace one of L × L.",
    )
    diagram.box(0, 0, 16, 3, "I: m points", 2)
    diagram.arrow((15.6, 1), (24, 1))
    diagram.words(17, 0, "queries")
    diagram.box(25, 0, 9, 3, "MAB", 3)
    diagram.arrow((33.6, 1), (38, 1))
    diagram.box(39, 0, 15, 3, "H: m vectors", 2)
    diagram.line((53.6, 1), (64, 1))
    diagram.arrow((64, 1), (64, 5.3))
    diagram.words(66, 3, "keys, values")
    diagram.box(0, 6, 16, 3, "X: L elements", 1)
    diagram.arrow((15.6, 7), (59, 7))
    diagram.words(46, 6, "queries")
    diagram.arrow((29, 6.7), (29, 3.3))
    diagram.words(31, 4, "keys, values")
    diagram.box(60, 6, 9, 3, "MAB", 3)
    diagram.arrow((68.6, 7), (73, 7))
    diagram.box(74, 6, 15, 3, "L elements", 1)
    return diagram


def _pma() -> Diagram:
    diagram = Diagram(
        "PMA(Z): k seeds read the set, and each becomes one pooled vector",
        kinds=KINDS,
        note="The result does not depend on the order of the elements.",
    )
    diagram.box(0, 0, 16, 3, "S: k seeds", 2)
    diagram.arrow((15.6, 1), (37, 1))
    diagram.words(24, 0, "queries")
    diagram.box(38, 0, 9, 3, "MAB", 3)
    diagram.arrow((46.6, 1), (51, 1))
    diagram.box(52, 0, 14, 3, "k vectors", 2)
    diagram.box(0, 5, 16, 3, "Z: L elements", 1)
    diagram.arrow((15.6, 6), (20, 6))
    diagram.box(21, 5, 7, 3, "rFF")
    diagram.line((27.6, 6), (42, 6))
    diagram.arrow((42, 6), (42, 3.3))
    diagram.words(29, 5, "keys, values")
    return diagram


def _model() -> Diagram:
    diagram = Diagram(
        "the whole model",
        kinds=KINDS,
        note="The encoder keeps one vector per element. The decoder pools them, and pooled vectors read one another.",
    )
    steps = (("set X", 1), ("ISAB", 3), ("ISAB", 3), ("PMA", 3), ("SAB", 3), ("linear", 0), ("answer", 0))
    for n, (name, kind) in enumerate(steps):
        diagram.box(14 * n, 1, 10, 3, name, kind)
        if n:
            diagram.arrow((14 * n - 4.4, 2), (14 * n - 1, 2))
    diagram.words(18, 0, "encoder: L elements")
    diagram.words(48, 0, "decoder: k vectors")
    return diagram
