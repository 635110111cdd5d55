"""The figure `clustered`: clusters of queries with their means, and the weights."""

import math
from collections.abc import Iterator

import torch

from kinformer import Clustered, Full, HammingKMeans, ImprovedClustered, Softmax
from kinformer.pages.eight_tokens import LABELS, attention_weights, token_vectors
from kinformer.pages.figures.routing import RADIUS, X, Y, degrees, draw_token_circle
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

CLUSTERS, TOPK, LENGTH = 3, 2, 4.0


def draw() -> Iterator[Diagram | Picture]:
    """Yield the clusters of the eight queries and their means, and the weights of three mechanisms."""
    grouping = HammingKMeans(2, CLUSTERS)
    yield _clusters(grouping)
    mechanisms = {
        "softmax": Softmax(Full()),
        "clustered": Clustered(grouping),
        f"improved, top {TOPK}": ImprovedClustered(grouping, TOPK),
    }
    weights = {
        title: attention_weights(mechanism, token_vectors(LENGTH), token_vectors())
        for title, mechanism in mechanisms.items()
    }
    panels = tuple(shades(title, x, LABELS, LABELS) for title, x in weights.items())
    note = "A darker cell is a larger weight. In the middle, queries of one cluster have equal rows."
    yield Picture("attention weights of the eight tokens", (), panels, note=note)


def _clusters(grouping: HammingKMeans) -> Diagram:
    queries = token_vectors(LENGTH)
    cluster = grouping(queries[None, None], torch.arange(len(queries))[None, None])[0, 0]
    means = torch.stack([queries[cluster == n].mean(0) for n in range(CLUSTERS)])
    diagram = Diagram(
        "clusters of the eight queries, and the mean query of each cluster",
        kinds=tuple(f"cluster {n}" for n in range(CLUSTERS)),
        note=f"The circle is the length of the queries, {LENGTH:g}. An arrow is a mean query, with its length. "
        "Labels end with the cluster.",
    )
    draw_token_circle(diagram, [1 + n for n in cluster.tolist()])
    for n, (angle, length) in enumerate(zip(degrees(means), means.norm(dim=1).tolist(), strict=True)):
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        tip = X + 2 * RADIUS * length / LENGTH * cos, Y - RADIUS * length / LENGTH * sin
        diagram.arrow((X, Y), tip, kind=n + 1)
        label = f"{length:.2f}"
        diagram.words(round(X + RADIUS * cos) - 2, round(Y - RADIUS / 2 * sin) + (1 if sin < 0 else -1), label, n + 1)
    return diagram
