"""The figure `lsh`: sectors of a hash on a circle, and tokens sorted by sector and cut into chunks."""

import math
from collections.abc import Iterator

import torch

from kinformer.pages.eight_tokens import ANGLES, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

SECTORS, CHUNK = 4, 2
X, Y, RADIUS = 28, 9, 8  # centre of the circle, and its radius in lines
TURNS = {"first round: R is not turned": 0, "second round: R is turned by 45 degrees": 45}


def draw() -> Iterator[Diagram]:
    """Yield a circle for each of two hash rounds, and the sorted list of the first round."""
    for title, turn in TURNS.items():
        yield _circle(title, turn)
    yield _sorted_list()


def buckets_of(turn: float) -> list[int]:
    """Return the bucket of each of the eight tokens: the largest entry of [x R, -x R].

    turn: angle of the rotation R in degrees.
    """
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    turned = token_vectors() @ torch.tensor([[cos, -sin], [sin, cos]])
    return torch.cat([turned, -turned], -1).argmax(-1).tolist()


def _circle(title: str, turn: float) -> Diagram:
    diagram = Diagram(
        f"hash of the eight tokens, {title}",
        kinds=tuple(f"bucket {n}" for n in range(SECTORS)),
        note="A token is a direction; its bucket is the sector that it lies in. Borders are dashed.",
    )
    diagram.circle(X, Y, RADIUS)
    for n in range(SECTORS):
        border = math.radians(turn + 45 + 90 * n)
        far = (X + 2.3 * RADIUS * math.cos(border), Y - 1.15 * RADIUS * math.sin(border))
        diagram.line((X, Y), far, dashed=True)
    for place, (token, angle, bucket) in enumerate(zip(TOKENS, ANGLES, buckets_of(turn), strict=True)):
        at = math.radians(angle)
        x, y = round(X + 2 * RADIUS * math.cos(at)), round(Y - RADIUS * math.sin(at))
        label = f"{place} {token} {angle}"
        diagram.words(x, y, "●", bucket + 1)
        diagram.words(x + 2 if math.cos(at) > 0 else x - 1 - len(label), y, label, bucket + 1)
    return diagram


def _sorted_list() -> Diagram:
    buckets = buckets_of(0)
    order = sorted(range(len(TOKENS)), key=lambda place: (buckets[place], place))
    diagram = Diagram(
        "first round: tokens sorted by bucket, then by position, and cut into chunks of 2",
        kinds=tuple(f"bucket {n}" for n in range(SECTORS)),
        note="A query reads earlier tokens of its bucket in its own chunk and in the chunk before.",
    )
    diagram.words(0, 1, "by position")
    diagram.words(0, 5, "by bucket")
    diagram.words(0, 8, "chunk")
    for slot in range(len(TOKENS)):
        for row, place in ((0, slot), (4, order[slot])):
            diagram.box(12 + 8 * slot, row, 8, 3, f"{place} {TOKENS[place]}", buckets[place] + 1)
    for slot in range(0, len(TOKENS) + 1, CHUNK):
        diagram.line((11.5 + 8 * slot, 3), (11.5 + 8 * slot, 8), dashed=True)
    for chunk in range(len(TOKENS) // CHUNK):
        diagram.words(12 + 8 * CHUNK * chunk + 7, 8, str(chunk))
        if chunk:
            diagram.arrow((12 + 16 * chunk + 4, 9), (12 + 16 * chunk - 4, 9))
    diagram.words(0, 9, "reads")
    return diagram
