"""The figure `transformer_xl`: segments with a memory in three layers, and the cost of evaluation."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

SEGMENT, LAYERS = 2, 3
WINDOW = 4  # tokens of the window in evaluation
LEFT, BOX, STEP, ROW = 10, 16, 24, 6  # first column, width of a box, and steps to the next box and the next layer
CELL, HALF = 5, 52  # width of a token in evaluation, and the first column of the second model


def draw() -> Iterator[Diagram]:
    """Yield the segments of a plain Transformer and of a Transformer-XL, and their cost in evaluation."""
    yield _layers("Transformer-XL, segments of 2 tokens: a layer also reads the segment before", SEGMENT)
    yield _layers("plain Transformer, segments of 2 tokens: no information passes between segments", 0)
    yield _evaluation()


def segments_read(memory: int) -> list[list[bool]]:
    """Return for each number of layers, from 0, the segments that reach the last one.

    memory: number of tokens before its segment that a layer reads.
    """
    pairs = (kf.Causal() & kf.Segment(SEGMENT, memory)).matrix(len(TOKENS)).float()
    rows, tokens = [], torch.zeros(len(TOKENS))
    tokens[-SEGMENT:] = 1
    for _ in range(LAYERS + 1):
        rows.append(tokens.unflatten(0, (-1, SEGMENT)).any(1).tolist())
        tokens = (tokens @ pairs).clamp(max=1)
    return rows


def _layers(caption: str, memory: int) -> Diagram:
    dashed = " Dashed: a stored state, as a constant (the gradient is stopped)." if memory else ""
    diagram = Diagram(
        caption,
        kinds=("reaches the last segment of layer 3", "does not reach it"),
        note=f"Arrows: keys and values. Solid: from the same segment.{dashed}",
    )
    reached = segments_read(memory)
    for layer in range(LAYERS + 1):
        y = ROW * (LAYERS - layer)
        diagram.words(0, y + 1, f"layer {layer}" if layer else "inputs")
        for n in range(len(TOKENS) // SEGMENT):
            x = LEFT + STEP * n
            places = range(SEGMENT * n, SEGMENT * (n + 1))
            text = "  ".join(LABELS[place] for place in places)
            diagram.box(x, y, BOX, 3, text, 1 if reached[LAYERS - layer][n] else 2)
            if not layer:
                continue
            diagram.arrow((x + 8, y + ROW), (x + 8, y + 2.51))
            if n and memory:
                before = x - STEP + 12
                diagram.arrow((before, y + ROW), (before, y + 4), (x + 3, y + 4), (x + 3, y + 2.51), dashed=True)
    return diagram


def _evaluation() -> Diagram:
    diagram = Diagram(
        f"evaluation, segments of 1 token and a memory of {WINDOW - 1}: states that are computed for each next token",
        kinds=("computed now", "stored before"),
        note="The plain model slides its window by one token. All positions in the window change, and the token that "
        "falls out had been read by the others. So it computes every state again.",
    )
    titles = ("plain Transformer", "Transformer-XL")
    for column, title in ((0, titles[0]), (HALF, titles[1])):
        diagram.words(column, 0, title, bold=True)
    for row, now in enumerate(range(WINDOW - 1, len(TOKENS))):
        for column in (0, HALF):
            computed = 0
            for place in range(now - WINDOW + 1, now + 1):
                fresh = column == 0 or place == now or row == 0
                computed += fresh
                diagram.box(column + CELL * place, 2 + 2 * row, CELL, 1, TOKENS[place], 1 if fresh else 2)
            diagram.words(column + CELL * len(TOKENS) + 2, 2 + 2 * row, str(computed))
    return diagram
