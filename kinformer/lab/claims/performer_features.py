"""Performer's positive features estimate small kernel values better than sines and cosines."""

import math
from collections.abc import Sequence
from statistics import mean

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.feature_map import FeatureMap
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.trigonometric import Trigonometric

WIDTH, SIZES = 8, (16, 64, 256)
# 180 degrees is left out, because there the product of any positive feature is the kernel itself
ANGLES = tuple(range(0, 180, 15))
SMALL, DRAWS, MORE = 150, 1000, 100_000
# at smaller angles rare draws decide the error, and MORE draws are too few to meet them
RESOLVED = slice(ANGLES.index(90), ANGLES.index(SMALL) + 1)
SAYS = (
    "positive features estimate exp(q.k) better than sines and cosines where exp(q.k) is small, and orthogonal ones "
    "better still"
)
SOURCE = "Choromanski et al., 2020, arXiv:2009.14794, lemmas 1 and 2 and theorem 2"


def vectors(angles: Sequence[float]) -> Float[Tensor, "1 1 T K"]:
    """Return vectors of length K^(1/4) at these angles to the first axis.

    The feature maps divide vectors of width K by K^(1/4), so they see unit vectors.

    angles: angles in degrees.
    """
    turned = torch.tensor([math.radians(angle) for angle in angles], dtype=torch.float64)
    x = torch.zeros(1, 1, len(angles), WIDTH, dtype=torch.float64)
    x[..., 0], x[..., 1] = turned.cos(), turned.sin()
    return x * WIDTH**0.25


def error(map: FeatureMap, size: int, angles: Sequence[float] = ANGLES) -> Float[Tensor, " angles"]:
    """Return the mean squared error of a feature map's estimates of exp(q.k), at each angle of q and k.

    map: feature map with random directions.
    size: number of directions per estimate. The directions of the map are split into groups of this size, and each
        group gives one estimate.
    angles: angles between query and key in degrees.
    """
    (q, of_q), (k, of_k) = map(vectors((0,)), True), map(vectors(angles), False)
    m = map.features(WIDTH) // (2 if map.signed else 1)
    by_direction = (q * k).unflatten(-1, (-1, m)).sum(-2)[0, 0] * m  # sine and cosine of a direction form one estimate
    estimates = by_direction.unflatten(-1, (-1, size)).mean(-1) * (of_q + of_k)[0, 0, :, None].exp()
    kernel = torch.tensor([math.cos(math.radians(angle)) for angle in angles], dtype=torch.float64).exp()
    return (estimates - kernel[:, None]).square().mean(-1)


def expected(positive: bool, size: int, angle: float) -> float:
    """Return the mean squared error of estimates of exp(q.k) that the paper's lemma 2 predicts.

    The lemma is about independent random directions and unit vectors.

    positive: True for positive features, False for sines and cosines.
    size: number of directions per estimate.
    angle: angle between query and key in degrees.
    """
    product = math.cos(math.radians(angle))
    together, apart = 2 + 2 * product, 2 - 2 * product  # |q + k|^2 and |q - k|^2
    if positive:
        return math.exp(together + 2 * product) * (1 - math.exp(-together)) / size
    return math.exp(together - 2 * product) * (1 - math.exp(-apart)) ** 2 / (2 * size)


def claim(seeds: Sequence[int], draws: int = DRAWS, orthogonal_draws: int = MORE) -> Claim:
    """Compare the errors with which random features estimate exp(q.k).

    Positive features are compared with sines and cosines, and orthogonal random directions with independent ones. The
    claim holds if two conditions are met. At 150 degrees between q and k, for 16, 64 and 256 directions, the squared
    error of sines and cosines is at least 10 times the error of positive features. From 90 to 150 degrees, the squared
    error with orthogonal directions is below the error with independent ones.

    seeds: seeds of the directions.
    draws: number of estimates per size.
    orthogonal_draws: number of estimates for the comparison with orthogonal directions.
    """
    measures, facts, errors_by_size = [], {}, {}
    for size in SIZES:
        n = size * draws
        trig = [error(Trigonometric(WIDTH, n, orthogonal=False, seed=seed), size) for seed in seeds]
        positive = [error(FAVOR(WIDTH, n, orthogonal=False, eps=0.0, seed=seed), size) for seed in seeds]
        errors_by_size[size] = torch.stack(trig).mean(0), torch.stack(positive).mean(0)
        ratio = [t / p for t, p in zip(trig, positive, strict=True)]
        at = ANGLES.index(SMALL)
        measures.append(
            Measure(
                f"squared error of sines and cosines divided by positive features', {SMALL} degrees, {size} directions",
                [float(ratios[at]) for ratios in ratio],
                "least",
                10,
                no_effect=1,
            )
        )
        facts[f"sines and cosines divided by positive features, by angle in degrees, {size} directions"] = ", ".join(
            f"{angle}: {mean(float(ratios[n]) for ratios in ratio):.2g}" for n, angle in enumerate(ANGLES) if angle
        )
    shares = torch.stack([_orthogonal_over_independent(seed, orthogonal_draws) for seed in seeds])
    measures.append(
        Measure(
            f"squared error of {WIDTH} orthogonal directions divided by independent ones, "
            f"width {WIDTH}, 90 to {SMALL} degrees",
            shares[:, RESOLVED].mean(1).tolist(),
            "most",
            1,
        )
    )
    facts["orthogonal divided by independent, by angle in degrees; smaller angles depend on rare draws"] = ", ".join(
        f"{angle}: {share:.2f}"
        for angle, share in zip(ANGLES[RESOLVED], shares.mean(0)[RESOLVED].tolist(), strict=True)
    )
    lines, xlabel, ticks = [], "angle of query and key, degrees", range(0, 181, 30)
    for is_positive, name, errors in zip(
        (False, True), ("sines and cosines", "positive"), errors_by_size[SIZES[1]], strict=True
    ):
        colour = "tab:blue" if is_positive else "tab:gray"
        lines.append(PlotLine(ANGLES[1:], errors[1:].tolist(), name, "o", colour))
        by_lemma = [expected(is_positive, SIZES[1], angle) for angle in ANGLES[1:]]
        lines.append(PlotLine(ANGLES[1:], by_lemma, f"{name}, lemma 2", "-", colour))
    by_angle = Plot(
        f"{SIZES[1]} directions", xlabel, "squared error of exp(q.k), |q| = |k| = 1", lines, log="y", ticks=ticks
    )
    lines = [PlotLine(ANGLES[RESOLVED], y, "", "o", "tab:blue") for y in shares[:, RESOLVED].tolist()]
    orthogonal = Plot(
        "orthogonal directions",
        xlabel,
        "squared error relative to independent directions",
        lines,
        levels=((1, "independent"),),
        ticks=ticks,
        ylim=(0, 1.1),
    )
    return Claim(SAYS, SOURCE, tuple(measures), facts, (by_angle, orthogonal))


def _orthogonal_over_independent(seed: int, draws: int) -> Float[Tensor, " angles"]:
    maps = [FAVOR(WIDTH, WIDTH * draws, orthogonal=orthogonal, eps=0.0, seed=seed) for orthogonal in (True, False)]
    return error(maps[0], WIDTH) / error(maps[1], WIDTH)
