"""The figure `linformer`: keys and values projected along the length, and weights by position."""

from collections.abc import Iterator

import torch

from kinformer.core.patterns.full import Full
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.shorteners.linformer import Linformer
from kinformer.pages.eight_tokens import TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

LINES = {"L": 9, "k": 4, "d": 3}  # height of a matrix with as many rows
COLUMNS = {"L": 20, "k": 9, "d": 9}  # width of a matrix with as many columns
GROUPS = ((0, 1, 3, 4, 5), (2, 6))  # tokens of the two mixtures of the example


def draw() -> Iterator[Diagram | Picture]:
    """Yield the projection of the keys, the attention to the mixtures, and the weights of the example."""
    kinds = ("input", "trained matrix", "intermediate result", "output")
    projection = Diagram(
        "1. project along the length: k mixtures of L keys; values likewise with F",
        kinds=kinds,
        note="E has one column for each position. The width d stays.",
    )
    _draw_product(projection, 0, (("E", "k x L", 2, "x"), ("K", "L x d", 1, "="), ("E K", "k x d", 3, "")))
    yield projection
    attention = Diagram(
        "2. attend to the mixtures",
        kinds=kinds,
        note="No L x L matrix occurs. The softmax runs over the k columns of A.",
    )
    first = (("Q", "L x d", 1, "x"), ("(E K)^T", "d x k", 3, "="), ("A", "L x k", 3, ""))
    x = _draw_product(attention, 0, first)
    then = (("softmax\n(A)", "L x k", 3, "x"), ("F V", "k x d", 3, "="), ("Y", "L x d", 4, ""))
    _draw_product(attention, x + 2, then)
    yield attention
    yield _weights()


def _draw_product(diagram: Diagram, x: int, matrices: tuple[tuple[str, str, int, str], ...]) -> int:
    """Draw matrices with the sign behind each; return the column behind the last one."""
    for name, size, kind, sign in matrices:
        rows, columns = size.split(" x ")
        height, width = LINES[rows], COLUMNS[columns]
        top = (LINES["L"] - height) // 2
        if height > LINES["d"]:
            diagram.box(x, top, width, height, f"{name}\n{size}", kind)
        else:
            diagram.box(x, top, width, height, name, kind)
            diagram.words(x + (width - len(size)) // 2, top + height, size)
        diagram.words(x + width + 1, LINES["L"] // 2, sign)
        x += width + 3
    return x


def _weights() -> Picture:
    x, linformer = token_vectors(), Linformer(len(TOKENS), len(GROUPS))
    matrix = torch.zeros(1, len(TOKENS), len(GROUPS))
    for row, group in enumerate(GROUPS):
        matrix[0, list(group), row] = 1 / len(group)
    with torch.no_grad():
        for parameter in linformer.parameters():
            parameter.copy_(matrix)
    attention, moved = Shortened(Softmax(Full()), linformer), x.roll(1, 0)
    moved_tokens = (TOKENS[-1], *TOKENS[:-1])
    return Picture(
        "the matrix E of the example, its weights, and the weights of a text that is moved by one token",
        (),
        (
            shades("E", matrix[0].mT, ("0", "1"), tuple(map(str, range(len(TOKENS))))),
            shades("weights", attention_weights(attention, 4 * x, x), TOKENS, TOKENS),
            shades("text moved by 1", attention_weights(attention, 4 * moved, moved), moved_tokens, moved_tokens),
        ),
        line="mixture, or query",
        column="position, or key",
        note="E belongs to positions: in the moved text its second row no longer takes the two sat.",
    )
