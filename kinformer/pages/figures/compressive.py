"""The figure `compressive`: the contents of a compressive memory, and the loss of its compression."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

SEGMENT, SLOTS = 2, 2
KINDS = ("compressed memory: a slot for 2 tokens", "memory", "segment: its tokens are the queries")
COLUMNS = (0, 34, 68)  # of the compressed memory, the memory and the segment
BOX, STEP, ROW = 12, 13, 6


def draw() -> Iterator[Diagram]:
    """Yield the contents of both memories segment by segment, and the attention-reconstruction loss."""
    yield _conveyor()
    yield _loss()


def contents() -> list[tuple[list[int], list[int]]]:
    """Return the first token of each slot, and the tokens of the memory, at the start of every segment."""
    memory = kf.Compressive(SEGMENT, SEGMENT, SLOTS, kf.MeanPool(2))
    layer = kf.Attention(kf.QKV(2, 1), kf.Softmax(kf.Causal() & memory.reads), memory=memory)
    rows, state = [], layer.start(1, len(TOKENS) + SEGMENT)
    for _ in range(len(TOKENS) // SEGMENT + 1):
        slots, near = state.old.pos[0].tolist(), state.pos[0].tolist()
        rows.append(([n for n in slots if n >= 0], [n for n in near if n >= 0][-SEGMENT:]))
        state = layer(torch.zeros(1, SEGMENT, 2), state).state
    return rows


def _conveyor() -> Diagram:
    diagram = Diagram(
        "keys of each segment: compressed memory, memory and the segment itself, oldest on the left",
        kinds=KINDS,
        note="At the end of a segment its inputs move to the memory without gradient. Those that leave the memory "
        "become one slot. The oldest slot is dropped.",
    )
    for x, title in zip(COLUMNS, ("compressed memory", "memory", "segment"), strict=True):
        diagram.words(x, 0, title, COLUMNS.index(x) + 1, bold=True)
    for row, (slots, near) in enumerate(contents()):
        y = 2 + ROW * row
        first = SEGMENT * row
        segment = [n for n in range(first, first + SEGMENT) if n < len(TOKENS)]
        labels = (
            [f"{n}-{n + 1}" for n in slots],
            [LABELS[n] for n in near],
            [LABELS[n] for n in segment] or ["...", "..."],
        )
        for kind, (left, texts) in enumerate(zip(COLUMNS, labels, strict=True)):
            for place in range(SEGMENT):
                text = texts[place - SEGMENT] if place >= SEGMENT - len(texts) else "empty"
                x = left + STEP * place
                diagram.box(x, y, BOX, 3, text, 0 if text == "empty" else kind + 1, dashed=text == "empty")
        if segment:
            diagram.arrow(*_down(COLUMNS[2] + 12, COLUMNS[1] + 18, y), kind=3)
            diagram.words(COLUMNS[1] + 22, y + 3, "gradient stopped", 3)
            if near:
                diagram.arrow(*_down(COLUMNS[1] + 6, COLUMNS[0] + 18, y), kind=2)
                diagram.words(COLUMNS[0] + 22, y + 3, "f_c: 2 to 1", 2)
            if len(slots) == SLOTS:
                diagram.arrow((COLUMNS[0] + 6, y + 2), (COLUMNS[0] + 6, y + 4), kind=1)
                diagram.words(COLUMNS[0] + 3, y + 5, "dropped", 1)
    return diagram


def _down(from_x: int, to_x: int, y: int) -> list[tuple[float, float]]:
    return [(from_x, y + 2), (from_x, y + 4), (to_x, y + 4), (to_x, y + ROW - 0.51)]


def _loss() -> Diagram:
    diagram = Diagram(
        "attention-reconstruction loss of a layer",
        kinds=("learns from this loss", "constant in this loss"),
        note="h: inputs of the segment. Its attention to the old memories and to their slots should be equal.",
    )
    diagram.box(0, 0, 17, 3, "old memories", 2)
    diagram.box(22, 0, 14, 3, "f_c (learns)", 1)
    diagram.box(40, 0, 10, 3, "slots", 1)
    diagram.box(56, 0, 24, 3, "attn(h, slots)", 1)
    diagram.box(56, 5, 24, 3, "h", 2)
    diagram.box(56, 10, 24, 3, "attn(h, old memories)", 2)
    diagram.box(84, 5, 16, 3, "|difference|", 1)
    diagram.arrow((16, 1), (21.4, 1))
    diagram.arrow((35, 1), (39.4, 1))
    diagram.arrow((49, 1), (55.4, 1))
    diagram.arrow((8, 2), (8, 11), (55.4, 11))
    diagram.arrow((68, 5), (68, 2.51))
    diagram.arrow((68, 7), (68, 9.49))
    diagram.arrow((79, 1), (92, 1), (92, 4.49))
    diagram.arrow((79, 11), (92, 11), (92, 7.51))
    return diagram
