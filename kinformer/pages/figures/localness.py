"""The figure `localness`: a Gaussian window as a prior that is added to the scores of attention."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.bias import Bias
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

QUERY, LENGTH = 5, 4.0
KINDS = ("score from content", "prior G", "final")
LEFT, STEP = 12, 11  # column of the first key, and columns for each key


def draw() -> Iterator[Diagram | Picture]:
    """Yield the window of one query with its sums, and the weights of all queries."""
    window = make_window()
    product = attention_weights(kf.Unnormalised(kf.Full(), window), token_vectors(LENGTH), token_vectors())
    prior = product.log() - _content()
    yield _sums(prior[QUERY])
    panels = (
        shades("content: softmax", _weights(None), LABELS, LABELS),
        shades("prior: exp(G)", of_most(prior.exp(), 1), LABELS, LABELS),
        shades("final: softmax", _weights(window), LABELS, LABELS),
    )
    note = "The final weights are the product of the first two matrices, normalised in each row."
    yield Picture("attention with a prior: softmax(scores + G)", (), panels, note=note)


def make_window() -> kf.QueryLocalness:
    """Return the window of the worked example, whose centre for dog is at cat."""
    window = kf.QueryLocalness(heads=1, head_dim=2)
    with torch.no_grad():
        window.inner.copy_(torch.eye(2)[None])
        window.centre.copy_(torch.tensor([[-1.0, -1.0]]))
        window.window.copy_(torch.tensor([[-0.5, -0.6]]))
    return window


def _content() -> Tensor:
    return token_vectors(LENGTH) @ token_vectors().T / 2**0.5


def _weights(bias: Bias | None) -> Tensor:
    return attention_weights(kf.Softmax(kf.Full(), bias), token_vectors(LENGTH), token_vectors())


def _sums(prior: Tensor) -> Diagram:
    diagram = Diagram(
        f"scores of the query {TOKENS[QUERY]} ({QUERY}), its prior G and their sum",
        kinds=KINDS,
        note="The curve is exp(G), 1 at the centre P. The query predicts P and the width D = 2 sigma.",
    )
    # G at three keys gives the parabola: its second difference is -1 / sigma^2
    first, second, third = prior[:3].tolist()
    bend = 2 * second - first - third
    centre, bottom = 1 + (third - first) / (2 * bend), 8
    middle = LEFT + 4
    points = [n / 4 for n in range(4 * len(TOKENS) - 3)]
    heights = [bottom - 6 * 2.718281828 ** (-((x - centre) ** 2) * bend / 2) for x in points]
    diagram.line((middle - 3, bottom), (middle + STEP * 7 + 4, bottom))
    diagram.line(*((middle + STEP * x, y) for x, y in zip(points, heights, strict=True)), kind=2)
    diagram.line((middle + STEP * centre, 1.5), (middle + STEP * centre, bottom), kind=2, dashed=True)
    sigma = bend**-0.5
    diagram.words(round(middle + STEP * centre) - 2, 0, f"P = {centre:.2f}", 2)
    diagram.words(round(middle + STEP * (centre + 2 * sigma)), 5, f"D = 2 sigma = {2 * sigma:.2f} positions", 2)
    diagram.words(0, 4, "exp(G)", 2)
    for key, name in enumerate(LABELS):
        diagram.words(LEFT + STEP * key + 2, bottom + 1, name)
    own, final = _content()[QUERY], _weights(make_window())[QUERY]
    rows = (("score", own, 1), ("+ G", prior, 2), ("= sum", own + prior, 3), ("softmax", final, 3))
    for n, (title, numbers, kind) in enumerate(rows):
        y = bottom + 3 + 3 * n
        diagram.words(0, y + 1, title, kind)
        for key, number in enumerate(numbers.tolist()):
            diagram.box(LEFT + STEP * key, y, 9, 3, f"{round(number, 2) + 0.0:.2f}", kind)
    return diagram
