"""The figure `star_transformer`: the ring around the relay, and the two steps of a round."""

import math
from collections.abc import Iterator

import torch

from kinformer.core.layer import Context
from kinformer.nn.depth.star import StarRound, StarRounds
from kinformer.pages.eight_tokens import TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

X, Y, ACROSS, DOWN = 40, 11, 30, 9  # centre of the ring, and its half width in columns and half height in lines
WIDTH = 9  # columns of a token's box
READER = 1  # the token with the coloured keys
KEYS = ("token before", "itself", "token after", "its embedding", "relay")


def draw() -> Iterator[Diagram]:
    """Yield the ring with its relay, and the two steps of a round."""
    yield _ring()
    yield _round()


def _ring() -> Diagram:
    star = StarRounds([StarRound(16, 2)])
    ring = star.make_ring(Context.of_sequence(torch.zeros(1, len(TOKENS), 1)))
    keys = {int(ring.before[0, READER]), READER, int(ring.after[0, READER])}
    diagram = Diagram(
        "the ring: each token is joined to its neighbours and to the relay",
        kinds=(f"keys of {TOKENS[READER]}, besides its own embedding",),
        note="The last token and the first are neighbours.",
    )
    for place in range(len(TOKENS)):
        x, y = _place(place)
        diagram.line((X, Y), (x, y), kind=int(place == READER))
        diagram.line((x, y), _place(int(ring.after[0, place])), kind=int({place, int(ring.after[0, place])} <= keys))
    for place, token in enumerate(TOKENS):
        x, y = _place(place)
        diagram.box(x - WIDTH // 2, y - 1, WIDTH, 3, f"{place} {token}", int(place in keys))
    diagram.box(X - 5, Y - 1, 11, 3, "relay s", 1)
    return diagram


def _place(place: int) -> tuple[int, int]:
    angle = 2 * math.pi * (place - 1) / len(TOKENS) - math.pi / 2
    return round(X + ACROSS * math.cos(angle)), round(Y + DOWN * math.sin(angle))


def _round() -> Diagram:
    diagram = Diagram(
        "one round: first all tokens at once, then the relay",
        kinds=("step 1: tokens", "step 2: relay"),
        note="The relay of step 1 is from the round before; step 2 reads the new tokens.",
    )
    for n, key in enumerate(KEYS):
        diagram.box(18 * n, 0, 16, 3, key)
        diagram.line((18 * n + 8, 2), (18 * n + 8, 4), kind=1)
    diagram.line((8, 4), (18 * 4 + 8, 4), kind=1)
    diagram.arrow((18 * 2 + 8, 4), (18 * 2 + 8, 5.7), kind=1)
    diagram.box(18, 6, 52, 3, "attention with 5 keys, ReLU, norm: new token", 1)
    diagram.box(0, 11, 16, 3, "relay")
    diagram.box(18, 11, 52, 3, "all new tokens, as keys and values", 1)
    diagram.arrow((44, 8), (44, 10.7), kind=1)
    diagram.line((8, 13), (8, 15), kind=2)
    diagram.line((44, 13), (44, 15), kind=2)
    diagram.line((8, 15), (44, 15), kind=2)
    diagram.arrow((44, 15), (44, 16.7), kind=2)
    diagram.box(18, 17, 52, 3, "attention with n + 1 keys, ReLU, norm: new relay", 2)
    return diagram
