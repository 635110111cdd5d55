"""The figure `rope`: two vectors that turn with their positions, and the frequencies of four scalings."""

import math
from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.nn.positions.sinusoidal import angular
from kinformer.pages.eight_tokens import ANGLES, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

X, Y, RADIUS = 30, 9, 8
PAIR = (1, 5)  # positions of cat and dog
HEAD, BASE, FACTOR, TRAINED = 64, 10000.0, 4.0, 2048
LEFT, BOTTOM, ACROSS = 10, 16, 2.6
SCALINGS = {
    "unscaled": None,
    "pi": kf.PositionInterpolation(FACTOR),
    "ntk": kf.NTKAware(FACTOR),
    "yarn": kf.YaRN(FACTOR, TRAINED),
}


def draw() -> Iterator[Diagram]:
    """Yield cat and dog at two places of a row, and how much each scaling slows each pair of dimensions."""
    yield _circle("cat at 1, dog at 5", 0)
    yield _circle("the same words three places later: cat at 4, dog at 8", 3)
    yield _slowness()


def turned_angles(shift: int) -> list[float]:
    """Return the angles in degrees of cat and dog after the rotation by their positions.

    shift: number that is added to their positions.
    """
    places = torch.tensor([[place + shift for place in PAIR]])
    vectors = kf.Rotary(2)(token_vectors()[None, None, PAIR], places)[0, 0]
    return [math.degrees(math.atan2(y, x)) % 360 for x, y in vectors.tolist()]


def slowness() -> dict[str, list[float]]:
    """Return the factors of each scaling: old frequency over new frequency, for each pair of dimensions."""
    plain = angular(HEAD, torch.float32, torch.device("cpu"), BASE)
    return {
        name: [1.0] * len(plain) if scaling is None else (plain / scaling.scale(plain, BASE)).tolist()
        for name, scaling in SCALINGS.items()
    }


def _circle(title: str, shift: int) -> Diagram:
    angles = turned_angles(shift)
    between = (angles[1] - angles[0]) % 360
    diagram = Diagram(
        f"{title}; the angle between them is {min(between, 360 - between):.0f} degrees",
        kinds=("before the rotation", "after the rotation by 1 radian per position"),
        note="Queries and keys turn by their own positions. The angle between both depends on the distance.",
    )
    diagram.circle(X, Y, RADIUS)
    for place, turned in zip(PAIR, angles, strict=True):
        for kind, angle in ((1, float(ANGLES[place])), (2, turned)):
            at = math.radians(angle)
            x, y = X + 2 * RADIUS * math.cos(at), Y - RADIUS * math.sin(at)
            diagram.arrow((X, Y), (x, y), kind=kind, dashed=kind == 1)
            label = f"{TOKENS[place]} {angle:.0f}"
            diagram.words(round(x) + 2 if x > X else round(x) - 1 - len(label), round(y), label, kind)
    return diagram


def _slowness() -> Diagram:
    diagram = Diagram(
        f"old over new frequency of each pair; rows {FACTOR:g} times as long as the trained {TRAINED:,} tokens",
        kinds=tuple(SCALINGS),
        note=f"Head width {HEAD}: 32 pairs. Pair 0 is the fastest. Unscaled rotations have the factor 1.",
    )
    diagram.line((LEFT, 0), (LEFT, BOTTOM), (LEFT + 84, BOTTOM))
    for factor in (1, 2, 3, 4):
        diagram.words(LEFT - 3, BOTTOM - 4 * (factor - 1) - 2, str(factor))
    for kind, factors in enumerate(slowness().values(), 1):
        points = [(LEFT + ACROSS * n, BOTTOM - 2 - 4 * (f - 1)) for n, f in enumerate(factors)]
        diagram.line(*points, kind=kind)
    for n in range(0, 32, 4):
        diagram.words(round(LEFT + ACROSS * n), BOTTOM + 1, str(n))
    diagram.words(LEFT + 70, BOTTOM + 2, "pair n")
    return diagram
