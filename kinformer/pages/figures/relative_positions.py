"""The figure `relative_positions`: clipped distances of all pairs, and T5's buckets."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture

CLIP = 2
DISTANCES = (f"-{CLIP} or before", *(str(n) for n in range(1 - CLIP, CLIP)), f"{CLIP} or later")
LEFT, BOTTOM, FURTHEST = 10, 16, 150


def draw() -> Iterator[Diagram | Picture]:
    """Yield the labels of all pairs under clipping, and the bucket of each distance in T5."""
    yield _labels()
    yield _buckets()


def _labels() -> Picture:
    places = torch.arange(len(TOKENS))
    label = (places[None] - places[:, None]).clamp(-CLIP, CLIP) + CLIP + 1
    reads = {"encoder": kf.Full(), "decoder": kf.Causal()}
    return Picture(
        f"labels of Shaw's relative positions, key minus query, clipped at k = {CLIP}",
        DISTANCES,
        tuple(
            Panel(title, label * pattern.matrix(len(TOKENS)), pattern.matrix(len(TOKENS)).float(), LABELS, LABELS)
            for title, pattern in reads.items()
        ),
        note="All pairs of one kind share a vector. A decoder needs only k + 1 vectors.",
    )


def _buckets() -> Diagram:
    diagram = Diagram(
        "T5: bucket of the distance, 32 buckets in a decoder",
        note="Distances 0 to 15 have a bucket each. Buckets get wider by equal factors, up to 128. Larger distances "
        "share the last bucket.",
    )
    buckets = kf.T5(1).bucket(torch.arange(FURTHEST + 1)).tolist()
    across = 85 / FURTHEST
    diagram.line((LEFT, 0), (LEFT, BOTTOM), (LEFT + 86, BOTTOM))
    for bucket in (0, 8, 16, 24, 31):
        diagram.words(LEFT - 3 - len(str(bucket)), BOTTOM - round(bucket / 2), str(bucket))
    diagram.words(LEFT + 3, 0, "bucket")
    points: list[tuple[float, float]] = []
    for distance, bucket in enumerate(buckets):
        points.append((LEFT + across * distance, BOTTOM - bucket / 2))
    diagram.line(*points, kind=1)
    for distance in (0, 16, 32, 64, 96, 128):
        diagram.words(round(LEFT + across * distance), BOTTOM + 1, str(distance))
    diagram.words(LEFT + 78, BOTTOM + 2, "distance")
    return diagram
