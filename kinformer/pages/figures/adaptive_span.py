"""The figure `adaptive_span`: the soft mask as a curve, and the keys that two heads read."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, attention_weights
from kinformer.pages.pictures.support.diagram import Diagram

SPANS, RAMP, LONGEST = (1.0, 4.0), 2, 7
HEADS = tuple(f"head {n}: z = {z:g}" for n, z in enumerate(SPANS, 1))
LEFT, STEP = 12, 10  # column of the first distance or key, and columns for each


def draw() -> Iterator[Diagram]:
    """Yield the mask of two heads over the distance, and its values at the keys of the last token."""
    yield _curve()
    yield _keys()


def mask(z: float) -> list[float]:
    """Return the soft mask of a head at the distances 0 to 7.

    With equal scores the attention weights of the last token are proportional to the mask, which is 1 at distance 0.

    z: span of the head, in positions.
    """
    span = kf.AdaptiveSpan(1, LONGEST, ramp=RAMP, start=z)
    weights = attention_weights(kf.Softmax(kf.Causal(), span), torch.zeros(len(TOKENS), 2))[-1]
    return (weights / weights[-1]).flip(0).tolist()


def _curve() -> Diagram:
    bottom = 9
    diagram = Diagram(
        f"soft mask m(x) = clamp(({RAMP} + z - x) / {RAMP}, 0, 1) over the distance x of a key",
        kinds=HEADS,
        note=f"The mask is 1 up to z and falls to 0 over R = {RAMP} positions. z is learned, R is fixed.",
    )
    diagram.line((LEFT, 0), (LEFT, bottom), (LEFT + STEP * LONGEST + 4, bottom))
    diagram.words(LEFT - 6, 1, "1.0")
    diagram.words(LEFT - 6, 5, "0.5")
    diagram.words(LEFT - 6, bottom, "0.0")
    for kind, z in enumerate(SPANS, 1):
        heights = [bottom - 8 * m for m in mask(z)]
        diagram.line(*((LEFT + STEP * x, y) for x, y in enumerate(heights)), kind=kind)
        end = LEFT + STEP * int(z)
        diagram.words(end, 0, f"z = {z:g}", kind)
        diagram.words(end + STEP * RAMP + 1, bottom - 1, "z + R", kind)
    for x in range(LONGEST + 1):
        diagram.words(LEFT + STEP * x, bottom + 1, str(x))
    diagram.words(LEFT + STEP * LONGEST + 3, bottom + 1, "x")
    return diagram


def _keys() -> Diagram:
    diagram = Diagram(
        "factor m of each key for the last token; the token itself is not read",
        kinds=(*HEADS, "not read"),
        note="Only keys with 0 < m < 1 give z a gradient of the task's loss.",
    )
    for row, z in enumerate(SPANS):
        values = mask(z)
        diagram.words(0, 4 * row + 1, f"head {row + 1}")
        for key in range(len(TOKENS) - 1):
            m = values[len(TOKENS) - 1 - key]
            diagram.box(LEFT - 2 + STEP * key, 4 * row, 9, 3, f"{m:.1f}", row + 1 if m else 3, dashed=not m)
    for key, token in enumerate(TOKENS):
        diagram.words(LEFT + STEP * key, 7, f"{key} {token}")
        diagram.words(LEFT + STEP * key + 1, 8, str(len(TOKENS) - 1 - key))
    diagram.words(0, 8, "distance")
    return diagram
