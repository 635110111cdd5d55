"""The figure `al_rfou`: predictions of all layers and positions, and when each layer stops."""

from collections.abc import Iterator

import torch

from kinformer.nn.losses.multi_step_loss import layer_weights, targets_of_steps
from kinformer.pages.eight_tokens import TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

DEPTH, FURTHER = 4, 0.5  # layers, and loss weight of the token after the next
LEFT, STEP = 9, 10  # column of the first token, and columns per token
WORDS = tuple(dict.fromkeys(TOKENS))
TIMES = 80  # columns of a training


def draw() -> Iterator[Diagram]:
    """Yield the predictions at the start of the training, and the layers that predict over its course."""
    yield _predictions()
    yield _schedule()


def targets() -> list[list[int]]:
    """Return the next token and the token after it for each of the eight tokens; -1 for none."""
    ids = [WORDS.index(token) for token in TOKENS]
    return [step[0].tolist() for step in targets_of_steps(torch.tensor([[*ids[1:], -1]]), 2)]


def _predictions() -> Diagram:
    diagram = Diagram(
        f"predictions of {DEPTH} layers at the start of the training",
        kinds=("the only prediction of older models", "lower layers", "further positions"),
        note=f"First line of a box: next token. Second line: the token after it, with loss weight {FURTHER}. Attention "
        "is causal.",
    )
    following, later = targets()
    last = max(n for n, target in enumerate(following) if target >= 0)
    for n, token in enumerate(TOKENS):
        x = LEFT + STEP * n
        diagram.words(x + 3, 5 * DEPTH, token)
        for layer in range(1, DEPTH + 1):
            y = 5 * (DEPTH - layer)
            kind = 2 if layer < DEPTH else 1 if n == last else 3  # lower layers have the colour of the second diagram
            labels = [WORDS[target] if target >= 0 else "-" for target in (following[n], later[n])]
            diagram.box(x, y, 9, 4, "\n".join(labels), kind if following[n] >= 0 else 0)
            diagram.arrow((x + 4, y + 4.4 if layer == 1 else y + 5), (x + 4, y + 4))
    for layer in range(1, DEPTH + 1):
        diagram.words(0, 5 * (DEPTH - layer) + 1, f"layer {layer}")
    return diagram


def _schedule() -> Diagram:
    diagram = Diagram(
        f"layers that still predict over the course of the training: layer l of {DEPTH} stops at l / {2 * DEPTH}",
        kinds=("last layer", "lower layers"),
        note="In the second half of the training only the last layer predicts.",
    )
    steps = [layer_weights(DEPTH, column / TIMES) for column in range(TIMES + 1)]
    for layer in range(DEPTH, 0, -1):
        y = 3 * (DEPTH - layer)
        end = TIMES if layer == DEPTH else sum(layer - 1 in weights for weights in steps)
        diagram.words(0, y + 1, f"layer {layer}")
        diagram.box(LEFT, y, end, 3, f"{end / TIMES:g}", 1 if layer == DEPTH else 2)
    diagram.words(0, 3 * DEPTH, "progress")
    for part in range(5):
        diagram.words(LEFT + TIMES * part // 4 - (2 if part == 4 else 0), 3 * DEPTH, f"{part / 4:g}")
    return diagram
