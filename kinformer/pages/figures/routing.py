"""The figure `routing`: clusters around centroids, and patterns of positions."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kinformer import PublishedRouting, Routing
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.pages.eight_tokens import ANGLES, TOKENS, token_vectors
from kinformer.pages.pictures.support.attention_calls import mask_of
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import NARROW, Panel, Picture, masks_grid

CENTROIDS = (45, 180, 300)  # degrees
DECAY, TAKEN = 0.9, 3
X, Y, RADIUS = 30, 9, 8  # centre of the circle, and its radius in lines
KINDS = tuple(f"cluster {n}" for n in range(len(CENTROIDS)))


def draw() -> Iterator[Diagram | Picture]:
    """Yield clusters of the eight tokens, clusters of equal size, and patterns of positions."""
    yield _clusters()
    yield _equal_sizes()
    yield _patterns()


def draw_token_circle(diagram: Diagram, kinds: Sequence[int]) -> None:
    """Draw the eight tokens on a circle around (X, Y), each at its angle, with its cluster (c0, c1, ..).

    diagram: the diagram to draw in.
    kinds: number of the kind of each token, which sets its colour: 1 for cluster 0.
    """
    diagram.circle(X, Y, RADIUS)
    for place, (token, angle, kind) in enumerate(zip(TOKENS, ANGLES, kinds, strict=True)):
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        x, y = round(X + 2 * RADIUS * cos), round(Y - RADIUS * sin)
        label = f"{place} {token} {angle} c{kind - 1}"
        diagram.words(x, y, "●", kind)
        diagram.words(x + 2 if cos > 0 else x - 1 - len(label), y, label, kind)


def draw_direction(diagram: Diagram, angle: float, length: float, label: str, kind: int) -> None:
    """Draw an arrow from the centre of the circle, and write a label at its end.

    A label of an arrow to the left stands below it.

    diagram: the diagram to draw in.
    angle: direction in degrees.
    length: length of the arrow; 1 reaches the circle.
    label: text at the end of the arrow.
    kind: number of the kind, which sets the colour.
    """
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    tip = round(X + 2 * RADIUS * length * cos), round(Y - RADIUS * length * sin)
    diagram.arrow((X, Y), tip, kind=kind)
    x, y = round(tip[0]), round(tip[1] - 1.4 * sin)
    if cos < -0.9:  # to the left of the tip, a label would lie across the circle
        y += 1
    x += 2 if cos > 0.9 else -(len(label) // 2)
    diagram.words(x, y, label, kind)


def degrees(x: Tensor) -> list[int]:
    """Return the directions of vectors in degrees from 0 to 359.

    x: vectors of two numbers.
    """
    return [round(math.degrees(math.atan2(b, a))) % 360 for a, b in x.tolist()]


def first_centroids() -> Tensor:
    """Return the centroids at the start, as unit vectors."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in CENTROIDS])


def _routing() -> Routing:
    routing = Routing(1, 2, len(CENTROIDS), norm="none", decay=DECAY)
    routing.centroids.mu.copy_(first_centroids()[None])
    return routing


def _clusters() -> Diagram:
    routing, x = _routing(), token_vectors()[None, None]
    clusters = routing.centroids.assign_clusters(x)
    sums = routing.centroids.sums(x, clusters, torch.ones_like(clusters, dtype=torch.bool))
    routing.centroids.after_step(0.0, {"clusters": 2 * sums})  # each token counts as a query and as a key
    diagram = Diagram(
        "clusters of the eight tokens: each token belongs to its nearest centroid",
        kinds=KINDS,
        note="The label of a token ends with its cluster. An arrow is a centroid, with its angle before and after one "
        f"training step with decay {DECAY}.",
    )
    draw_token_circle(diagram, [1 + n for n in clusters[0, 0].tolist()])
    for n, (before, after) in enumerate(zip(CENTROIDS, degrees(routing.centroids.mu[0]), strict=True)):
        draw_direction(diagram, before, 0.42, f"c{n}: {before}→{after}", n + 1)
    return diagram


def _equal_sizes() -> Diagram:
    published = PublishedRouting(1, 2, len(CENTROIDS), TAKEN, norm="none")
    published.centroids.mu.copy_(first_centroids()[None])
    diagram = Diagram(
        f"the paper's form: each centroid takes the {TAKEN} tokens most similar to it",
        kinds=KINDS,
        note="Among the first 5 tokens, the (4) is in clusters 0 and 2. Among all 8 it is in cluster 0 only: too (7) "
        "takes its place in cluster 2.",
    )
    x = 26
    for place, token in enumerate(TOKENS):
        diagram.words(x + 8 * place, 0, f"{place} {token}")
    for row, tokens in enumerate((5, 8)):
        similar = published.centroids.similarities(token_vectors()[None, None, :tokens])[0, 0]
        for n, members in enumerate(similar.topk(TAKEN, 0).indices.T.tolist()):
            y = 2 + 4 * row + n
            diagram.words(0, y, f"first {tokens} tokens" if not n else "")
            diagram.words(16, y, KINDS[n], n + 1)
            for place in range(tokens):
                taken = place in members
                diagram.box(x + 8 * place, y, 7, 1, TOKENS[place] if taken else "", n + 1 if taken else 0)
    return diagram


def _patterns() -> Picture:
    pos = torch.arange(NARROW)
    masks = [mask_of(pattern, NARROW)[0] for pattern in (Causal() & Band(3), Causal() & Strided(4))]
    cluster = _routing().centroids.assign_clusters(token_vectors().repeat(NARROW // len(TOKENS), 1)[None, None])[0, 0]
    same = (cluster[:, None] == cluster) & (pos[:, None] >= pos)
    empty = torch.zeros_like(same)
    before = [empty] * len(CENTROIDS)  # the clusters come first, so that they have the colours of the other figures
    panels = [_panel(title, [*before, mask]) for title, mask in zip(("local", "strided"), masks, strict=True)]
    panels.append(_panel("routing", [*(same & (cluster[:, None] == n) for n in range(len(CENTROIDS))), empty]))
    return Picture(
        "two patterns that depend on positions, and routing, which depends on content",
        (*KINDS, "read by position"),
        tuple(panels),
        note="The eight tokens twice, with clusters 0 0 1 2 0 0 1 2. A row is a query and reads the filled columns.",
    )


def _panel(title: str, masks: Sequence[Tensor]) -> Panel:
    return masks_grid(masks)._replace(title=title)
