"""The figure `performer`: exact and estimated weights, and the error of features by angle."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.patterns.causal import Causal
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.pages.eight_tokens import TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

X, Y, ACROSS, DOWN = 12, 0, 72, 16  # left and upper end of the curves, their columns and lines
TOP = 4  # largest error of the scale


def draw() -> Iterator[Diagram | Picture]:
    """Yield the weights by softmax and by positive features, then the error of both kinds of features."""
    yield _weights()
    yield _errors()


def errors_of_exponentials(angles: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the exact relative error (standard deviation) of one direction of FAVOR.

        sqrt(exp(|x + y|^2) - 1), with the scaled query x and the scaled key y

    A sample would not do: its standard deviation converges too slowly for small angles.

    angles: angles between query and key in degrees; both have length 1 and width 2.
    """
    return (_squared_lengths(angles)[0].exp() - 1).sqrt()


def errors_of_waves(angles: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the exact relative error (standard deviation) of one direction of sines and cosines.

        (1 - exp(-|x - y|^2)) exp(|x - y|^2 / 2) / sqrt(2), with the scaled query x and the scaled key y

    angles: angles between query and key in degrees; both have length 1 and width 2.
    """
    far = _squared_lengths(angles)[1]
    return (1 - (-far).exp()) * (far / 2).exp() / 2**0.5


def _squared_lengths(angles: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return |x + y|^2 and |x - y|^2 of vectors of length 1 that are divided by d^(1/4), with d = 2."""
    cosines = angles.deg2rad().cos()
    return 2**0.5 * (1 + cosines), 2**0.5 * (1 - cosines)


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
        note="Queries have length 2, keys length 1. Each row is divided by its largest weight.",
    )


def _errors() -> Diagram:
    diagram = Diagram(
        "relative error of one random direction by the angle between query and key",
        kinds=("positive features (Performer)", "sines and cosines"),
        note="Exact standard deviation, divided by the kernel, d = 2. m independent directions divide it by sqrt(m).",
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
    for kind, errors in enumerate((errors_of_exponentials(angles), errors_of_waves(angles)), start=1):
        points = [(_column(a), _line(error)) for a, error in zip(angles.tolist(), errors.tolist(), strict=True)]
        diagram.line(*points, kind=kind)
    return diagram


def _column(angle: float) -> float:
    return X + ACROSS * angle / 180


def _line(error: float) -> float:
    return Y + DOWN * (1 - error / TOP)
