"""The figure `transformer_xl_positions`: four terms of a score, two segments, and the shift."""

from collections.abc import Iterator

from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.pictures.support.diagram import Diagram

TERMS = (
    ("a  content", "q_i", "k_j", "Does this word fit my query?"),
    ("b  content and distance", "q_i", "W R_(i-j)", "Does this distance fit my query?"),
    ("c  bias of content", "u", "k_j", "Is this word important in general?"),
    ("d  bias of distance", "v", "W R_(i-j)", "Is this distance important in general?"),
)
KINDS = ("from the query", "learned vector of the head", "from the key's content", "from the distance")
SIZE, CELL = 4, 9


def draw() -> Iterator[Diagram]:
    """Yield the four terms, the positions of two segments, and the relative shift."""
    yield _terms()
    yield _segments()
    yield _shift()


def _terms() -> Diagram:
    diagram = Diagram(
        "the four terms of the score of query i and key j; the score is their sum",
        kinds=KINDS,
        note="Absolute positions would have p_i and p_j in place of u, v and R_(i-j).",
    )
    for row, (name, left, right, question) in enumerate(TERMS):
        y = 4 * row
        diagram.words(0, y + 1, name)
        diagram.box(25, y, 9, 3, left, 1 if left == "q_i" else 2)
        diagram.words(36, y + 1, "x")
        diagram.box(39, y, 13, 3, right, 3 if right == "k_j" else 4)
        diagram.words(55, y + 1, question)
    return diagram


def _segments() -> Diagram:
    diagram = Diagram(
        "positions of a memory and a segment of four tokens",
        kinds=("memory: the segment before", "segment"),
        note="Absolute positions repeat in each segment, so two tokens share each of them. Distances differ.",
    )
    rows = {
        "token": list(LABELS),
        "absolute": [str(n % 4) for n in range(8)],
        "to dog (5)": [str(5 - n) if n <= 5 else "" for n in range(8)],
    }
    for row, (name, cells) in enumerate(rows.items()):
        diagram.words(0, 3 * row + 1, name)
        for n, cell in enumerate(cells):
            if cell:
                diagram.box(12 + 10 * n, 3 * row, 9, 3, cell, 1 if n < 4 else 2)
    return diagram


def _shift() -> Diagram:
    diagram = Diagram(
        "relative shift: one product per query and distance, moved to the place of its key",
        kinds=("used", "distance below 0: masked"),
        note="Row i of the product lists the distances 3 to 0 and must move to the left by 3 - i. A zero column in "
        "front and a reshape of the matrix do this without a loop.",
    )
    diagram.words(10, 0, "product Q (W R)^T: distances")
    diagram.words(62, 0, "after the shift: keys")
    for column in range(SIZE):
        diagram.words(14 + CELL * column, 1, str(SIZE - 1 - column))
        diagram.words(66 + CELL * column, 1, str(column))
    for row in range(SIZE):
        y = 2 + 3 * row
        diagram.words(0, y + 1, f"query {row}")
        for column in range(SIZE):
            far = SIZE - 1 - column
            diagram.box(10 + CELL * column, y, CELL, 3, f"({row}, {far})", 1 if far <= row else 0)
            text = f"({row}, {row - column})" if column <= row else "-"
            diagram.box(62 + CELL * column, y, CELL, 3, text, 1 if column <= row else 2, dashed=column > row)
    diagram.arrow((48, 8), (59, 8))
    diagram.words(50, 7, "shift")
    return diagram
