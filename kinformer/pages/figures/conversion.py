"""The figure `conversion`: weights of a converted model, and the steps of a conversion."""

from collections.abc import Iterator

from kinformer.pages.pictures.support.diagram import Diagram

OLD, NEW = 1, 2
LEFT, RIGHT = 18, 56  # first columns of old and of new weights


def draw() -> Iterator[Diagram]:
    """Yield four ways to make new weights, and the four steps of a conversion."""
    yield _weights()
    yield _steps()


def _weights() -> Diagram:
    diagram = Diagram(
        "weights of the source, on the left, and of the converted model, on the right",
        kinds=("trained weight, or its copy", "new part"),
        note="A good start computes the same outputs as the source, at least for short rows.",
    )
    for y, name, example in (
        (0, "copied", "window"),
        (4, "tiled", "learned positions"),
        (8, "averaged", "mqa"),
        (12, "duplicated", "longformer"),
        (16, "new", "etc"),
    ):
        diagram.words(0, y + 1, name, bold=True)
        diagram.words(82, y + 1, example)
    for y, old, new in (
        (0, ("W",), ("W",)),
        (4, ("0-7",), ("0-7", "0-7")),
        (8, ("K1", "K2"), ("mean",)),
        (12, ("local",), ("local", "global")),
    ):
        for n, text in enumerate(old):
            diagram.box(LEFT + 9 * n, y, 8, 3, text, OLD)
        for n, text in enumerate(new):
            diagram.box(RIGHT + 11 * n, y, 10, 3, text, OLD)
        diagram.arrow((LEFT + 9 * len(old) - 2, y + 1), (RIGHT - 0.6, y + 1))
    diagram.box(RIGHT, 16, 10, 3, "gate = 0", NEW)
    return diagram


def _steps() -> Diagram:
    diagram = Diagram(
        "the four steps of a conversion", kinds=("without data", "with data"), note="The source stays as it is."
    )
    for n, (name, text, kind) in enumerate(
        (
            ("plan", "fate of each tensor,\nrows of equal output", OLD),
            ("match", "new parts learn the\nlayer's old outputs", NEW),
            ("adapt", "training, with the\nsource as teacher", NEW),
            ("report", "metric and speed,\nbefore and after", NEW),
        )
    ):
        x = 26 * n
        diagram.words(x + 1, 0, name, kind, bold=True)
        diagram.box(x, 1, 22, 4, text, kind)
        if n:
            diagram.arrow((x - 5, 3), (x - 0.6, 3))
    return diagram
