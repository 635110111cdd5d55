"""The figure `learned_positions`: rows that training reaches, and a table for every layer."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

LENGTH, TRAINED = 8, 6  # rows of the table, and tokens of a training row
LEFT, STEP, BOX = 10, 10, 9


def draw() -> Iterator[Diagram]:
    """Yield the table of one model with the rows that get a gradient, and a model with a table per layer."""
    yield _table()
    yield _layers()


def trained_rows() -> list[bool]:
    """Return which rows of a table get a gradient from training rows of six tokens."""
    position = kf.Learned(2, LENGTH)
    position(torch.arange(TRAINED)[None]).square().sum().backward()
    assert position.table.weight.grad is not None
    return (position.table.weight.grad != 0).any(1).tolist()


def _table() -> Diagram:
    diagram = Diagram(
        f"a table of {LENGTH} positions, trained on rows of {TRAINED} tokens",
        kinds=("trained", "random: no training row reaches it", "no such row: an error"),
        note="Row i of the table P is added to the embedding of the token at position i.",
    )
    diagram.words(0, 1, "token")
    diagram.words(0, 6, "table P")
    diagram.words(0, 9, "position")
    for place, is_trained in enumerate([*trained_rows(), None]):
        x = LEFT + STEP * place
        kind = 3 if is_trained is None else 1 if is_trained else 2
        diagram.box(x, 5, BOX, 3, "-" if is_trained is None else f"P[{place}]", kind, dashed=kind > 1)
        diagram.words(x + 4, 9, str(place))
        if is_trained is None:
            continue
        diagram.box(x, 0, BOX, 3, f"E[{TOKENS[place]}]")
        diagram.words(x + 4, 3, "+")
    return diagram


def _layers() -> Diagram:
    diagram = Diagram(
        "one table below the first layer (GPT, BERT), and one table for each layer (Al-Rfou et al.)",
        kinds=("position table", "layer"),
        note="With a table per layer, N layers have N L d position weights, and positions cannot fade with depth.",
    )
    for y, title, tables in ((0, "one table", 1), (8, "per layer", 3)):
        diagram.words(0, y + 1, title)
        diagram.words(13, y + 1, "E[token]")
        diagram.arrow((22, y + 1), (26.4, y + 1))
        for n in range(3):
            x = 27 + 24 * n
            if n < tables:
                diagram.box(x, y, 5, 3, "+")
                diagram.box(x - 2, y + 4, 9, 3, f"P_{n + 1}" if tables > 1 else "P", 1)
                diagram.arrow((x + 2, y + 4), (x + 2, y + 2.51))
                diagram.arrow((x + 4, y + 1), (x + 7.4, y + 1))
            diagram.box(x + 8, y, 11, 3, f"layer {n + 1}", 2)
            diagram.arrow((x + 18, y + 1), (x + (23.4 if n + 1 < tables or n == 2 else 31.4), y + 1))
    return diagram
