"""The figure `average_attention`: a running sum that tokens write and read, and its equal weights."""

from collections.abc import Iterator

import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import UncastState
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mixers.average_attention import AverageAttention
from kinformer.pages.eight_tokens import TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

STEPS = (3, 4, 5)  # tokens of the diagram
BOX, GAP, FIRST = 22, 10, 6  # width of a box, space between two boxes, first column


def draw() -> Iterator[Diagram | Picture]:
    """Yield three decoding steps, then the weights of the mean and of softmax."""
    yield _decoding()
    yield _weights()


def _decoding() -> Diagram:
    diagram = Diagram(
        "decoding of tokens 3 to 5: each token y enters the sum, then reads the mean",
        kinds=("token", "state", "computation", "output"),
        note="The state is one vector and a count. The gates also get the token y itself (right of each column).",
    )
    layer, x = AverageAttention(2), token_vectors()
    state: UncastState | None = layer.start(1, len(x))
    for place in range(max(STEPS) + 1):
        step = x[None, place : place + 1]
        mean, state = layer.mean(step, state, Context(torch.tensor([[place]]), run=True, full=True))
        if place not in STEPS:
            continue
        left = FIRST + STEPS.index(place) * (BOX + GAP)
        middle, right = left + BOX // 2, left + BOX + 2
        assert state is not None
        total, count = state.inside.total[0].tolist(), state.inside.tokens.item()
        diagram.box(left, 0, BOX, 3, f"y: {place} {TOKENS[place]}", 1)
        diagram.arrow((middle, 2), (middle, 4.6))
        diagram.box(left, 5, BOX, 4, f"sum ({total[0]:.2f}, {total[1]:.2f})\ncount {count}", 2)
        diagram.arrow((left - GAP - (1 if place != STEPS[0] else -4), 6.5), (left - 0.8, 6.5))
        diagram.arrow((middle, 8), (middle, 10.6))
        diagram.box(left, 11, BOX, 4, f"mean ({mean[0, 0, 0]:.2f}, {mean[0, 0, 1]:.2f})\ng = FFN(mean)", 3)
        diagram.arrow((middle, 14), (middle, 16.6))
        diagram.box(left, 17, BOX, 3, "h = i * y + f * g", 4)
        diagram.arrow((left + BOX - 1, 1), (right, 1), (right, 18), (left + BOX - 0.2, 18), dashed=True)
    end = FIRST + len(STEPS) * BOX + (len(STEPS) - 1) * GAP
    diagram.arrow((end - 1, 6.5), (end + 4, 6.5))
    return diagram


def _weights() -> Picture:
    count = len(TOKENS)
    eye = torch.eye(count)
    means = AverageAttention(count).mean(eye[None], None, Context.of_sequence(eye[None]))[0][0]
    softmax = attention_weights(Softmax(Causal()), 4 * token_vectors(), token_vectors())
    return Picture(
        "weights of the mean, 1/j for every earlier token, and of softmax attention",
        (),
        (shades("mean", means, TOKENS, TOKENS), shades("softmax", softmax, TOKENS, TOKENS)),
    )
