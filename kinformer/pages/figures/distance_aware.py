"""The figure `distance_aware`: the learned sigmoid f(R), and its values for the keys of a token."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, attention_weights
from kinformer.pages.pictures.support.diagram import Diagram

BETAS = (-1.0, 0.0, 1.0)
STEPS, STEP = 24, 0.25  # points on each side of R = 0, and the distance between them
LEFT, BOTTOM, ACROSS, UP = 10, 17, 1.7, 4
QUERY, HEADS = 5, ((-1.0, 0.0), (1.0, 1.0))  # position of the query; alpha and beta of each head


def draw() -> Iterator[Diagram]:
    """Yield f(R) for three values of beta, and the factors of all keys of one token."""
    yield _curves()
    yield _keys()


def factors(alpha: float, beta: float, query: int, length: int) -> list[float]:
    """Return f(alpha |i - j|) for all keys j of a query i.

    Equal scores of 1 become f, so the logarithms of the weights are f up to a constant; f is 1 at the query itself.

    alpha, beta: numbers of the head.
    query: position of the query.
    length: number of keys.
    """
    bias = kf.DistanceAware(1)
    with torch.no_grad():
        bias.alpha.fill_(alpha)
        bias.beta.fill_(beta)
    ones = torch.ones(length, 1)
    logs = attention_weights(kf.Softmax(kf.Full(), bias, scale=1.0), ones)[query].log()
    return (1 + logs - logs[query]).tolist()


def _curves() -> Diagram:
    bounds = [1 + torch.tensor(beta).exp().item() for beta in BETAS]
    diagram = Diagram(
        "f(R) = (1 + exp(beta)) / (1 + exp(beta - R)), with R = alpha * distance",
        kinds=tuple(f"beta = {beta:g}: at most {bound:.2f}" for beta, bound in zip(BETAS, bounds, strict=True)),
        note="Left of 0: alpha < 0, far keys lose. Right of 0: alpha > 0, far keys gain. f(0) is 1 for every beta.",
    )
    middle = LEFT + ACROSS * STEPS
    diagram.line((LEFT, BOTTOM), (LEFT + 2 * ACROSS * STEPS + 2, BOTTOM))
    diagram.line((middle, 0), (middle, BOTTOM), dashed=True)
    for value in range(5):
        diagram.words(LEFT - 3, BOTTOM - UP * value, str(value))
    for kind, beta in enumerate(BETAS, 1):
        left, right = (factors(sign * STEP, beta, 0, STEPS + 1) for sign in (-1, 1))
        heights = [*left[::-1], *right[1:]]
        diagram.line(*((LEFT + ACROSS * n, BOTTOM - UP * f) for n, f in enumerate(heights)), kind=kind)
    for r in range(-6, 7, 2):
        diagram.words(round(middle + ACROSS * r / STEP) - (r < 0), BOTTOM + 1, str(r))
    diagram.words(LEFT + 80, BOTTOM + 2, "R")
    return diagram


def _keys() -> Diagram:
    diagram = Diagram(
        f"factor f of each key for {TOKENS[QUERY]} ({QUERY})",
        kinds=("lowers the score", "leaves it", "raises it"),
        note="Equal distances have equal factors on either side.",
    )
    for row, (alpha, beta) in enumerate(HEADS):
        y = 4 * row
        diagram.words(0, y, f"alpha = {alpha:g}")
        diagram.words(0, y + 1, f"beta = {beta:g}")
        for key, f in enumerate(factors(alpha, beta, QUERY, len(TOKENS))):
            kind = 2 if key == QUERY else 1 if f < 1 else 3
            diagram.box(13 + 10 * key, y, 9, 3, f"{f:.2f}", kind)
    for key, token in enumerate(TOKENS):
        diagram.words(14 + 10 * key, 8, f"{key} {token}")
        diagram.words(17 + 10 * key, 9, str(abs(key - QUERY)))
    diagram.words(0, 9, "distance")
    return diagram
