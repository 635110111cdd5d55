"""The figure `linear_attention`: the order of the products, and a state that tokens write and read."""

from collections.abc import Iterator

import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.pages.eight_tokens import LABELS, token_positions, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

LONG, SHORT = 9, 3  # lines of a matrix for the length of the row, and for the width of a head
WIDE, NARROW = 18, 8  # the same in columns
STEPS = (3, 4, 5)  # tokens of the second diagram
BOX, GAP = 22, 10  # width of a box, and the space between two boxes


def draw() -> Iterator[Diagram]:
    """Yield the products of both forms with their sizes, then three steps of the recurrence."""
    yield _softmax_products()
    yield _linear_products()
    yield _recurrence()


def decode() -> list[tuple[list[float], list[float], float]]:
    """Return S, z and the output after each of the eight tokens; a token's value is its position."""
    linear, x = LinearAttention(ELU()).eval(), token_vectors()
    state = linear.start(StateSpec(1, len(x), torch.float32, torch.device("cpu")), HeadSizes(1, 1, 1, 2, 1))
    steps = []
    for place in range(len(x)):
        k, pos = x[None, None, place : place + 1], torch.tensor([[place]])
        keys = Keys(k, token_positions()[None, None, place : place + 1], pos[:, None])
        with torch.no_grad():
            read = linear(Queries(4 * k, pos[:, None]), keys, state, Context(pos, run=True, full=True))
        state = read.state
        s, z = state.inside.s[0, 0].clone().unbind(1)
        steps.append((s.tolist(), z.tolist(), read.y.y.item()))
    return steps


def _softmax_products() -> Diagram:
    diagram = Diagram(
        "softmax attention: first Q K^T, then the product with V",
        kinds=("input", "intermediate result", "output"),
        note="The L x L matrix is needed, because each row of it passes a softmax. Time: 2 L^2 d multiplications.",
    )
    return _draw_row(diagram, (("Q", "L x d", 1), ("K^T", "d x L", 1), ("A", "L x L", 2)), "softmax(A)", "V")


def _draw_row(diagram: Diagram, first: tuple[tuple[str, str, int], ...], weights: str, value: str) -> Diagram:
    x = 0
    for (name, size, kind), sign in zip(first, ("x", "=", ""), strict=True):
        x = _matrix(diagram, x, name, size, kind, sign)
    x = _matrix(diagram, x + 4, weights, "L x L", 2, "x")
    x = _matrix(diagram, x, value, "L x d", 1, "=")
    _matrix(diagram, x, "Y", "L x d", 3, "")
    return diagram


def _linear_products() -> Diagram:
    diagram = Diagram(
        "linear attention: first phi(K)^T V, then the product with phi(Q)",
        kinds=("input", "intermediate result", "output"),
        note="S is D x d at any length. Time: 2 L D d multiplications. The divisor z is left out here.",
    )
    x = _matrix(diagram, 0, "phi(K)^T", "D x L", 1, "x")
    x = _matrix(diagram, x, "V", "L x d", 1, "=")
    x = _matrix(diagram, x, "S", "D x d", 2, "")
    x = _matrix(diagram, x + 4, "phi(Q)", "L x D", 1, "x")
    x = _matrix(diagram, x, "S", "D x d", 2, "=")
    _matrix(diagram, x, "Y", "L x d", 3, "")
    return diagram


def _matrix(diagram: Diagram, x: int, name: str, size: str, kind: int, sign: str) -> int:
    """Draw a matrix with its name and size, and the sign behind it; return the column of the next matrix."""
    rows, columns = size.split(" x ")
    height, width = LONG if rows == "L" else SHORT, WIDE if columns == "L" else NARROW
    width = max(width, len(name) + 2)
    top = (LONG - height) // 2
    text = name if height == SHORT else f"{name}\n{size}"
    diagram.box(x, top, width, height, text, kind)
    if height == SHORT:
        diagram.words(x + (width - len(size)) // 2, top + height, size)
    diagram.words(x + width + 1, LONG // 2, sign)
    return x + width + 3


def _recurrence() -> Diagram:
    diagram = Diagram(
        "decoding of tokens 3 to 5: each token writes to the state, then reads from it",
        kinds=("token", "state", "output"),
        note="The value of token j is j. The state has the same size after every token. Numbers as in the example.",
    )
    for column, place in enumerate(STEPS):
        s, z, output = decode()[place]
        x = 6 + column * (BOX + GAP)
        middle = x + BOX // 2
        diagram.box(x, 0, BOX, 3, LABELS[place], 1)
        diagram.arrow((middle, 2), (middle, 6.6))
        diagram.words(middle + 2, 3, "write: add")
        diagram.words(middle + 2, 4, f"{place} phi(k) to S,")
        diagram.words(middle + 2, 5, "phi(k) to z")
        diagram.box(x, 7, BOX, 4, f"S = ({s[0]:.2f}, {s[1]:.2f})\nz = ({z[0]:.2f}, {z[1]:.2f})", 2)
        diagram.arrow((x - GAP - 1 + (6 if column == 0 else 0), 8.5), (x - 0.8, 8.5))
        diagram.arrow((middle, 10), (middle, 14.6))
        diagram.words(middle + 2, 12, "read phi(q)")
        diagram.box(x, 15, BOX, 3, f"y = {output:.2f}", 3)
    diagram.arrow((6 + 3 * BOX + 2 * GAP - 1, 8.5), (6 + 3 * BOX + 2 * GAP + 4, 8.5))
    return diagram
