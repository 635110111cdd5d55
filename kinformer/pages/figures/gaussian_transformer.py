"""The figure `gaussian_transformer`: the prior G over the distance, without and with an offset."""

from collections.abc import Iterator

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

SIGMA, OFFSETS = 2.0, (1e-6, 0.5)  # the initial |b| of each curve
KINDS = ("w = 0.125, b = 0", "w = 0.125, b = -0.5")
LEFT, STEP, HEIGHT, LOWEST = 10, 11, 10, 2.0  # lines of the curve, and the lowest G that is drawn
QUERY = 3


def draw() -> Iterator[Diagram]:
    """Yield G over the distance, and the weights of one query under G with equal scores from content."""
    priors = [kf.GaussianPrior(sigma=SIGMA, own=own) for own in OFFSETS]
    yield _curves([prior_of(prior) for prior in priors])
    yield _weights(priors)


def prior_of(prior: kf.GaussianPrior) -> list[float]:
    """Return G at the distances 0 to 7.

    prior: the prior of a layer.
    """
    x = token_vectors()
    return attention_weights(kf.Unnormalised(kf.Full(), prior), 0 * x, x).log()[0].tolist()


def _curves(curves: list[list[float]]) -> Diagram:
    diagram = Diagram(
        "G = -|w (i - j)^2 + b| over the distance |i - j|, sigma = 2",
        kinds=KINDS,
        note="With b < 0 the peak lies at the distance sqrt(-b / w), and the token itself has a lower score.",
    )
    right = LEFT + STEP * 7
    diagram.line((LEFT, 1), (LEFT, HEIGHT + 1))
    diagram.line((LEFT, 1), (right + 3, 1))
    diagram.words(LEFT - 6, 1, "0.0")
    diagram.words(LEFT - 6, HEIGHT + 1, f"{-LOWEST:.1f}")
    diagram.words(0, 5, "G")
    for kind, values in enumerate(curves, 1):
        points = [(LEFT + STEP * x, 1 - HEIGHT * g / LOWEST) for x, g in enumerate(values) if g >= -LOWEST]
        diagram.line(*points, kind=kind)
    for x in range(8):
        diagram.words(LEFT + STEP * x, 0, str(x))
    diagram.words(right + 4, 1, "|i-j|")
    return diagram


def _weights(priors: list[kf.GaussianPrior]) -> Diagram:
    diagram = Diagram(
        f"attention weights of {TOKENS[QUERY]} ({QUERY}) in an encoder if all scores from content are 0", kinds=KINDS
    )
    x = token_vectors()
    for row, prior in enumerate(priors):
        weights = attention_weights(kf.Softmax(kf.Full(), prior), 0 * x, x)[QUERY].tolist()
        diagram.words(0, 4 * row + 1, f"b = {-OFFSETS[row] if row else 0:g}", row + 1)
        for key, weight in enumerate(weights):
            diagram.box(LEFT + STEP * key, 4 * row, 10, 3, f"{weight:.2f}", row + 1)
    for key, token in enumerate(TOKENS):
        diagram.words(LEFT + STEP * key + 2, 7, f"{key} {token}")
    return diagram
