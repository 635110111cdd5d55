"""The figure `performer`: exact and estimated weights, and the error of features by angle."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.feature_map import FeatureMap
from kinformer.core.patterns.causal import Causal
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.pages.eight_tokens import TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

LENGTH = 1.0  # length of queries in the curves, as of keys; the matrices have queries of twice the length
DIRECTIONS = 100_000  # to measure the error of one direction
X, Y, ACROSS, DOWN = 12, 0, 72, 16  # left and upper end of the curves, their columns and lines
TOP = 4  # largest error of the scale


def draw() -> Iterator[Diagram | Picture]:
    """Yield the weights by softmax and by positive features, then the error of both kinds of features."""
    yield _weights()
    yield _errors()


def relative_errors(map: FeatureMap, angles: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the standard deviation of one direction's estimate, relative to the exact kernel.

    map: feature map with independent directions; its features are one or two groups of them.
    angles: angles between query and key in degrees.
    """
    rad = angles.deg2rad()
    k = torch.stack([rad.cos(), rad.sin()], 1)
    q = torch.tensor([[LENGTH, 0.0]])
    (of_q, scale), (of_k, scales) = map(q[None, None], True), map(k[None, None], False)
    products = of_q[0, 0] * of_k[0, 0] * (scale[0, 0] + scales[0, 0]).exp()[:, None]  # [n features]
    by_direction = products.unflatten(1, (-1, DIRECTIONS)).sum(1) * DIRECTIONS
    return by_direction.std(1) / (q @ k.T / 2**0.5).exp()[0]


def _weights() -> Picture:
    keys = token_vectors()
    kinds = {"softmax": Softmax(Causal())} | {f"m = {m}": LinearAttention(FAVOR(2, m, eps=0.0)) for m in (4, 16, 256)}
    panels = tuple(
        shades(title, of_most(attention_weights(mechanism, 2 * keys, keys), 1), TOKENS, TOKENS)
        for title, mechanism in kinds.items()
    )
    return Picture(
        "causal weights by softmax, and their estimates by m positive random features",
        (),
        panels,
        note="Each row is divided by its largest weight.",
    )


def _errors() -> Diagram:
    diagram = Diagram(
        "relative error of one random direction by the angle between query and key",
        kinds=("positive features (Performer)", "sines and cosines"),
        note="Measured standard deviation, divided by the exact kernel. m directions divide it by sqrt(m).",
    )
    diagram.line((X, Y), (X, Y + DOWN))
    diagram.line((X, Y + DOWN), (X + ACROSS, Y + DOWN))
    for error in range(TOP + 1):
        diagram.words(X - 3, round(_line(error)), str(error))
    for angle in range(0, 181, 30):
        label = str(angle)
        diagram.words(round(_column(angle)) - len(label) // 2, Y + DOWN + 1, label)
    diagram.words(X + ACROSS - 17, Y + DOWN + 2, "angle in degrees")
    angles = torch.arange(0.0, 181.0, 5.0)
    maps = (FAVOR(2, DIRECTIONS, eps=0.0, orthogonal=False), Trigonometric(2, DIRECTIONS, orthogonal=False))
    for kind, map in enumerate(maps, start=1):
        errors = relative_errors(map, angles).tolist()
        points = [(_column(a), _line(error)) for a, error in zip(angles.tolist(), errors, strict=True)]
        diagram.line(*points, kind=kind)
    return diagram


def _column(angle: float) -> float:
    return X + ACROSS * angle / 180


def _line(error: float) -> float:
    return Y + DOWN * (1 - error / TOP)
