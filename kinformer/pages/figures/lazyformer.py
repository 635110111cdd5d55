"""The figure `lazyformer`: lazy blocks of two layers, with the parts of each layer."""

from collections.abc import Iterator

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram

LAYERS, EVERY = 4, 2
KINDS = ("has queries and keys", "reuses the weights A", "in every layer")


def draw() -> Iterator[Diagram]:
    """Yield four layers in two lazy blocks."""
    diagram = Diagram(
        f"{LAYERS} layers with m = {EVERY}, from left to right",
        kinds=KINDS,
        note="A layer that reuses A computes new values from its own input. Numbers are parameters at width 256.",
    )
    diagram.words(0, 8, "x", 3)
    for n in range(LAYERS):
        x, first = 3 + 25 * n, n % EVERY == 0
        diagram.words(x + 1, 0, f"layer {n + 1}", bold=True)
        if first:
            diagram.box(x, 3, 12, 3, "Q and K", 1)
            diagram.box(x + 15, 3, 5, 3, "A", 1)
            diagram.arrow((x + 11, 4), (x + 14.4, 4), kind=1)
            diagram.arrow((x + 2, 8), (x + 2, 5.6), kind=3)
            diagram.arrow((x + 17, 3), (x + 17, 1), (x + 42, 1), (x + 42, 2.4), kind=2)
        else:
            diagram.box(x, 3, 12, 3, "no Q, K", 2, dashed=True)
            diagram.box(x + 15, 3, 5, 3, "A", 2)
        diagram.box(x + 5, 10, 5, 3, "V", 3)
        diagram.box(x + 13, 9, 9, 5, "A V W^O\nMLP", 3)
        diagram.arrow((x - 2, 8), (x + 2, 8), (x + 2, 11), (x + 4.4, 11), kind=3)
        diagram.arrow((x + 9, 11), (x + 12.4, 11), kind=3)
        diagram.arrow((x + 17, 5), (x + 17, 8.4), kind=1 if first else 2)
        if n < LAYERS - 1:
            diagram.line((x + 21, 11), (x + 23, 11), (x + 23, 8), kind=3)
        diagram.words(x + 1, 15, f"{_parameters(first):,}", 1 if first else 2)
    yield diagram


def _parameters(first: bool) -> int:
    """Return the number of parameters of an attention layer, without biases."""
    if first:
        layer = kf.Attention(kf.QKV(256, 4, bias=False), kf.Lending(kf.Causal()))
    else:
        layer = kf.Attention(kf.ValueProjection(256, 4, bias=False), kf.Reused(kf.Causal()))
    return sum(parameter.numel() for parameter in layer.parameters())
