"""The figure `lsh`: sectors of a hash on a circle, and tokens sorted by sector and cut into chunks."""

import math
from collections.abc import Iterator

import torch

from kinformer.pages.eight_tokens import ANGLES, LABELS, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

SECTORS, CHUNK = 4, 2
X, Y, RADIUS = 30, 9, 8  # centre of the circle, and its radius in lines
TURNS = {"first round: R is not turned": 0, "second round: R is turned by 45 degrees": 45}


def draw() -> Iterator[Diagram]:
    """Yield a circle for each of two hash rounds, and the sorted list of each."""
    for title, turn in TURNS.items():
        yield _circle(title, turn)
        yield _sorted_list(title.partition(":")[0], turn)


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
        note="A token is a direction. Its label has its position, word, angle and bucket (b). Borders are dashed.",
    )
    diagram.circle(X, Y, RADIUS)
    for n in range(SECTORS):
        border = math.radians(turn + 45 + 90 * n)
        far = (X + 2.3 * RADIUS * math.cos(border), Y - 1.15 * RADIUS * math.sin(border))
        diagram.line((X, Y), far, dashed=True)
        centre = math.radians(turn + 90 * n)
        diagram.words(
            round(X + RADIUS * math.cos(centre)) - 4, round(Y - RADIUS / 2 * math.sin(centre)), f"bucket {n}", n + 1
        )
    for place, (token, angle, bucket) in enumerate(zip(TOKENS, ANGLES, buckets_of(turn), strict=True)):
        at = math.radians(angle)
        x, y = round(X + 2 * RADIUS * math.cos(at)), round(Y - RADIUS * math.sin(at))
        label = f"{place} {token} {angle} b{bucket}"
        diagram.words(x, y, "●", bucket + 1)
        diagram.words(x + 2 if math.cos(at) > 0 else x - 1 - len(label), y, label, bucket + 1)
    return diagram


def _sorted_list(title: str, turn: float) -> Diagram:
    buckets = buckets_of(turn)
    order = sorted(range(len(TOKENS)), key=lambda place: (buckets[place], place))
    diagram = Diagram(
        f"{title}: tokens sorted by bucket, then by position, and cut into chunks of {CHUNK}",
        kinds=tuple(f"bucket {n}" for n in range(SECTORS)),
        note="A query reads earlier tokens of its bucket in its own chunk and in the chunk before.",
    )
    for y, words in ((1, "by position"), (3, "bucket"), (6, "by bucket"), (8, "bucket"), (10, "chunk"), (11, "reads")):
        diagram.words(0, y, words)
    for slot in range(len(TOKENS)):
        for row, place in ((0, slot), (5, order[slot])):
            diagram.box(12 + 8 * slot, row, 8, 3, LABELS[place], buckets[place] + 1)
            diagram.words(15 + 8 * slot, row + 3, f"b{buckets[place]}", buckets[place] + 1)
    for slot in range(0, len(TOKENS) + 1, CHUNK):
        diagram.line((11.5 + 8 * slot, 4.6), (11.5 + 8 * slot, 10), dashed=True)
    for chunk in range(len(TOKENS) // CHUNK):
        diagram.words(12 + 8 * CHUNK * chunk + 7, 10, str(chunk))
        if chunk:
            diagram.arrow((12 + 16 * chunk + 4, 11), (12 + 16 * chunk - 4, 11))
    return diagram
