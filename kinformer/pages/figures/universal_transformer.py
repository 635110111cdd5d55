"""The figure `universal_transformer`: repeated refinement of all positions, and the block diagram."""

import math
from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

STEPS, LEFT, STEP = 3, 11, 9  # repetitions; column of the first token, and columns per token
SHARPNESS = 4.0  # length of the queries


def draw() -> Iterator[Diagram]:
    """Yield the states of the eight tokens after each step, and the encoder with its decoder."""
    yield _refinement()
    yield _blocks()


def angles_of_steps() -> list[list[int]]:
    """Return the angle of each token's state before the first step and after each step, in degrees."""
    attention = kf.Attention(kf.QKV(2, 1, bias=False), kf.Softmax(kf.Causal()), aggregation=kf.Concat())
    for weight in attention.parameters():
        weight.data = torch.cat([SHARPNESS * torch.eye(2), torch.eye(2), torch.eye(2)])
    block = kf.PostNorm(attention, norm=kf.RMSNorm)
    x = token_vectors()[None]
    states = [x]
    with torch.no_grad():
        for steps in range(1, STEPS + 1):
            states.append(kf.Universal(block, steps).eval()(x, None, kf.Context.of_sequence(x)).y)
    return [[round(math.degrees(math.atan2(b, a))) % 360 for a, b in state[0].tolist()] for state in states]


def _refinement() -> Diagram:
    diagram = Diagram(
        f"{STEPS} steps over the eight tokens: every step changes all positions in parallel",
        kinds=("state, as an angle", "the same block with the same weights"),
        note="A decoder: each position reads itself and earlier positions of the same step. P(t) is the signal of "
        "position and step. The angles are computed with attention and a norm, without signal and transition.",
    )
    for step, angles in enumerate(angles_of_steps()):
        y = 8 * (STEPS - step)
        for n, angle in enumerate(angles):
            x = LEFT + STEP * n
            diagram.box(x, y, 7, 3, f"{angle}", 1)
            if step < STEPS:
                diagram.arrow((x + 3, y), (x + 3, y - 1))
                diagram.arrow((x + 3, y - 4), (x + 3, y - 5))
            if not step:
                diagram.words(x + 2, y + 3, TOKENS[n])
        if step < STEPS:
            text = "self-attention over positions, then a transition at each position"
            diagram.box(LEFT, y - 4, STEP * len(TOKENS) - 2, 3, text, 2)
            diagram.arrow((6, y - 3), (LEFT - 1, y - 3))
            diagram.words(0, y - 3, f"+ P({step + 1})")
        diagram.words(0, y + 1, f"H({step})")
    return diagram


def _blocks() -> Diagram:
    diagram = Diagram(
        "encoder and decoder: each is one block that is repeated T times",
        kinds=("repeated with shared weights", "computed once"),
        note="t counts the steps of the encoder or of the decoder. The decoder begins when the encoder has finished.",
    )
    source, target, wide = 15, 58, 26
    columns = (
        (source, ("embedding", "add P(t)", "self-attention\nadd input, norm", "transition\nadd input, norm"), "source"),
        (
            target,
            (
                "embedding",
                "add P(t)",
                "causal self-attention\nadd input, norm",
                "attention to the source\nadd input, norm",
                "transition\nadd input, norm",
            ),
            "target tokens so far",
        ),
    )
    for x, boxes, words in columns:
        middle, y = x + wide // 2, 30
        diagram.words(middle - len(words) // 2, y + 1, words)
        for n, text in enumerate(boxes):
            height = 4 if "\n" in text else 3
            diagram.arrow((middle, y + (1 if n else 0.4)), (middle, y))
            y -= height
            diagram.box(x, y, wide, height, text, 1 if n else 2)
            y -= 1
        diagram.arrow((middle, y + 1), (middle, y))
        y -= 1
        diagram.words(middle - 2, y, "H(t)")
        side, end = (x - 4, x - 1) if x == source else (x + wide + 3, x + wide)
        diagram.arrow((middle + (-3 if x == source else 3), y), (side, y), (side, 24), (end, 24))
        diagram.words(side - 11 if x == source else side + 1, 18, "t = 1 ... T")
        if x == source:
            diagram.arrow((middle + 3, y), (50, y), (50, y + 3), (target - 1, y + 3))
            diagram.words(middle + 5, y - 1, "H(T), after all steps")
        else:
            diagram.arrow((middle, y - 1), (middle, y - 2))
            diagram.box(x, y - 5, wide, 3, "output head and softmax", 2)
    return diagram
