"""The figure `hard_coded_gaussian`: fixed weights of three heads for two queries."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, attention_weights
from kinformer.pages.pictures.support.diagram import Diagram

OFFSETS = (-1, 0, 1)
KINDS = tuple(f"head of offset {offset}" for offset in OFFSETS)
LEFT, STEP, HEIGHT = 12, 10, 6


def draw() -> Iterator[Diagram]:
    """Yield the densities of three heads around dog, and around the first token."""
    for query in (5, 0):
        yield _curves(query, [weights_of(offset)[query] for offset in OFFSETS])


def weights_of(offset: int) -> Tensor:
    """Return the fixed weights of a head, a row for each query.

    offset: offset of the head, in positions.
    """
    mechanism = kf.Unnormalised(kf.Full(), kf.HardCodedGaussian((offset,)))
    return attention_weights(mechanism, torch.zeros(len(TOKENS), 0))  # no queries and keys


def _curves(query: int, heads: list[Tensor]) -> Diagram:
    diagram = Diagram(
        f"weights of {TOKENS[query]} ({query}) in three heads, sigma = 1; the words do not matter",
        kinds=KINDS,
        note="Weights are densities. At the ends of a row their sum is below 1.",
    )
    bottom = HEIGHT + 1
    diagram.line((LEFT - 4, bottom), (LEFT + STEP * len(TOKENS) - 4, bottom))
    for kind, (offset, weights) in enumerate(zip(OFFSETS, heads, strict=True), 1):
        points = [(LEFT + STEP * key, bottom - HEIGHT * w / 0.4) for key, w in enumerate(weights.tolist())]
        diagram.line(*points, kind=kind)
        y = bottom + 2 + kind
        diagram.words(0, y, f"o = {offset}", kind)
        for key, weight in enumerate(weights.tolist()):
            diagram.words(LEFT + STEP * key - 1, y, f"{weight:.2f}", kind)
        diagram.words(LEFT + STEP * len(TOKENS), y, f"{weights.sum():.2f}", kind)
    for key, token in enumerate(TOKENS):
        diagram.words(LEFT + STEP * key - 2, bottom + 1, f"{key} {token}", bold=key == query)
    diagram.words(LEFT + STEP * len(TOKENS), bottom + 1, "sum")
    return diagram
