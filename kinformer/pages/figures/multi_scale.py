"""The figure `multi_scale`: three masks over the distance, and the scales of heads."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.core.bias import Bias
from kinformer.members.multi_scale import shares
from kinformer.pages.eight_tokens import TOKENS, attention_weights
from kinformer.pages.pictures.support.diagram import Diagram

SCALES, QUERY = (1, 2, 4), 5
HEADS, LAYERS, ALPHA = 12, 3, 0.5
SPAN, RAMP, WINDOW = 2.0, 3, 4
KINDS = tuple(f"head of scale w = {w}" for w in SCALES)


def draw() -> Iterator[Diagram]:
    """Yield the masks, the windows of one query, and the distribution of heads over scales."""
    masks = {
        "full attention: m(x) = 1": kf.FunctionMasking(torch.ones_like),
        f"adaptive span: z = {SPAN:g}, R = {RAMP}": kf.AdaptiveSpan(1, len(TOKENS), ramp=RAMP, start=SPAN),
        f"multi-scale: w = {WINDOW}": kf.StepMasking((WINDOW,)),
    }
    yield _curves({title: mask(bias) for title, bias in masks.items()})
    yield _windows()
    yield _distribution()


def mask(bias: Bias) -> list[float]:
    """Return m at the distances 0 to 7: with equal scores, weights are proportional to it.

    bias: the mask as a bias.
    """
    weights = attention_weights(kf.Softmax(kf.Causal(), bias), torch.zeros(len(TOKENS), 2))[-1]
    return (weights / weights[-1]).flip(0).tolist()


def _curves(masks: dict[str, list[float]]) -> Diagram:
    diagram = Diagram(
        "masks m(x) over the distance x of a key",
        kinds=tuple(masks),
        note="Attention weights are multiplied by m(x) and normalised again. Only z is learned.",
    )
    bottom, wide, step = 8, 34, 3
    for n, (title, values) in enumerate(masks.items()):
        left = 4 + wide * n
        diagram.words(left - 4, 0, title, n + 1, bold=True)
        diagram.line((left, 2), (left, bottom), (left + step * 8, bottom))
        diagram.words(left - 4, 3, "1.0")
        diagram.words(left - 4, bottom, "0.0")
        points: list[tuple[float, float]] = []
        for x, m in enumerate(values):
            if x and values[x - 1] - m == 1:  # a step, not a slope
                points += [(left + step * x - step / 2, bottom - 5), (left + step * x - step / 2, bottom)]
            points.append((left + step * x, bottom - 5 * m))
        diagram.line(*points, kind=n + 1)
        for x in range(len(values)):
            diagram.words(left + step * x, bottom + 1, str(x))
        diagram.words(left + step * 8, bottom + 1, "x")
    return diagram


def _windows() -> Diagram:
    diagram = Diagram(
        f"keys that {TOKENS[QUERY]} ({QUERY}) reads in three heads of an encoder",
        kinds=(*KINDS, "not read"),
        note="A token reads w positions on each side.",
    )
    for row, w in enumerate(SCALES):
        reads = kf.Band(w).matrix(len(TOKENS))[QUERY].tolist()
        diagram.words(0, 4 * row + 1, f"w = {w}", row + 1)
        for key, token in enumerate(TOKENS):
            kind = row + 1 if reads[key] else len(SCALES) + 1
            diagram.box(10 + 10 * key, 4 * row, 9, 3, f"{key} {token}", kind, dashed=not reads[key])
    return diagram


def _distribution() -> Diagram:
    diagram = Diagram(
        f"scales of {HEADS} heads in {LAYERS} layers, alpha = {ALPHA}",
        kinds=KINDS,
        note="Low layers have more narrow heads; in the top layer all scales have equal numbers.",
    )
    for row, layer in enumerate(range(LAYERS, 0, -1)):
        counts = shares(layer, LAYERS, HEADS, len(SCALES), ALPHA)
        diagram.words(0, 4 * row + 1, f"layer {layer}")
        scales = [n for n, count in enumerate(counts) for _ in range(count)]
        for h, n in enumerate(scales):
            diagram.box(10 + 7 * h, 4 * row, 6, 3, str(SCALES[n]), n + 1)
    return diagram
