"""Performer: positive features estimate small kernels better than sines and cosines, orthogonal ones better yet."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.feature_map import FeatureMap
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.trigonometric import Trigonometric

WIDTH, SIZES = 8, (16, 64, 256)
ANGLES = tuple(range(0, 180, 15))  # at 180 degrees every positive feature's product is the kernel itself
SMALL, DRAWS, MORE = 150, 1000, 100_000
RESOLVED = slice(ANGLES.index(90), ANGLES.index(SMALL) + 1)  # nearer vectors' errors are of rare draws alone
SAYS = "positive features are nearer to exp(q.k) than sines and cosines where it is small, orthogonal ones nearer yet"
SOURCE = "Choromanski et al., 2020, arXiv:2009.14794, lemmas 1 and 2 and theorem 2"


def vectors(angles: Sequence[float]) -> Float[Tensor, "1 1 T K"]:
    """Unit vectors at these angles, in degrees, to the first axis; times K^(1/4), by which the maps divide."""
    turned = torch.tensor([math.radians(angle) for angle in angles], dtype=torch.float64)
    x = torch.zeros(1, 1, len(angles), WIDTH, dtype=torch.float64)
    x[..., 0], x[..., 1] = turned.cos(), turned.sin()
    return x * WIDTH**0.25


def error(map: FeatureMap, size: int, angles: Sequence[float] = ANGLES) -> Float[Tensor, " angles"]:
    """The mean squared error of exp(q.k) for unit vectors at each angle, estimated by each `size` of its directions."""
    (q, of_q), (k, of_k) = map(vectors((0,)), True), map(vectors(angles), False)
    m = map.features(WIDTH) // (2 if map.signed else 1)
    by_direction = (q * k).unflatten(-1, (-1, m)).sum(-2)[0, 0] * m  # sines and cosines of a direction are one estimate
    estimates = by_direction.unflatten(-1, (-1, size)).mean(-1) * (of_q + of_k)[0, 0, :, None].exp()
    kernel = torch.tensor([math.cos(math.radians(angle)) for angle in angles], dtype=torch.float64).exp()
    return (estimates - kernel[:, None]).square().mean(-1)


def expected(positive: bool, size: int, angle: float) -> float:
    """The paper's lemma 2 for independent directions and unit vectors."""
    product = math.cos(math.radians(angle))
    together, apart = 2 + 2 * product, 2 - 2 * product  # |q + k|^2 and |q - k|^2
    if positive:
        return math.exp(together + 2 * product) * (1 - math.exp(-together)) / size
    return math.exp(together - 2 * product) * (1 - math.exp(-apart)) ** 2 / (2 * size)


def claim(seeds: Sequence[int], draws: int = DRAWS, more: int = MORE) -> Claim:
    """Both estimates by angle at every size, with independent directions; and orthogonal ones against these."""
    measures, told, found = [], {}, {}
    for size in SIZES:
        n = size * draws
        trig = [error(Trigonometric(WIDTH, n, orthogonal=False, seed=seed), size) for seed in seeds]
        positive = [error(FAVOR(WIDTH, n, orthogonal=False, eps=0.0, seed=seed), size) for seed in seeds]
        found[size] = torch.stack(trig).mean(0), torch.stack(positive).mean(0)
        ratio = [t / p for t, p in zip(trig, positive, strict=True)]
        at = ANGLES.index(SMALL)
        measures.append(
            Measure(
                f"squared error of sines and cosines over positive features', {SMALL} degrees, {size} directions",
                [float(one[at]) for one in ratio],
                "least",
                10,
                nothing=1,
            )
        )
        told[f"the same by angle, {size} directions"] = ", ".join(
            f"{angle}: {mean(float(one[n]) for one in ratio):.2g}" for n, angle in enumerate(ANGLES) if angle
        )
    shares = torch.stack([_orthogonal_over_independent(seed, more) for seed in seeds])
    measures.append(
        Measure(
            f"squared error of orthogonal over independent features', {WIDTH} of width {WIDTH}, 90 to {SMALL} degrees",
            shares[:, RESOLVED].mean(1).tolist(),
            "most",
            1,
        )
    )
    told["orthogonal over independent by angle; of nearer vectors rare draws alone decide, which are too few"] = (
        ", ".join(
            f"{angle}: {share:.2f}"
            for angle, share in zip(ANGLES[RESOLVED], shares.mean(0)[RESOLVED].tolist(), strict=True)
        )
    )
    drawn: dict[str, Draw] = {
        f"{SIZES[1]} directions": partial(_draw_errors, SIZES[1], *found[SIZES[1]]),
        "orthogonal directions": partial(_draw_orthogonal, shares),
    }
    return Claim(SAYS, SOURCE, tuple(measures), told, drawn)


def _orthogonal_over_independent(seed: int, draws: int) -> Float[Tensor, " angles"]:
    made = [FAVOR(WIDTH, WIDTH * draws, orthogonal=orthogonal, eps=0.0, seed=seed) for orthogonal in (True, False)]
    return error(made[0], WIDTH) / error(made[1], WIDTH)


def _draw_errors(size: int, trig: Tensor, positive: Tensor, axes: Any) -> None:
    for name, found, positive_too, colour in (
        ("sines and cosines", trig, False, "tab:gray"),
        ("positive", positive, True, "tab:blue"),
    ):
        axes.semilogy(ANGLES[1:], found[1:].tolist(), "o", color=colour, label=name)
        wanted = [expected(positive_too, size, angle) for angle in ANGLES[1:]]
        axes.semilogy(ANGLES[1:], wanted, "-", color=colour, label=f"{name}, by the lemma")
    axes.set(xlabel="angle of query and key, degrees", ylabel="squared error of exp(q.k), |q| = |k| = 1")
    axes.set_xticks(range(0, 181, 30))
    axes.legend(fontsize=8)


def _draw_orthogonal(shares: Tensor, axes: Any) -> None:
    for one in shares[:, RESOLVED].tolist():
        axes.plot(ANGLES[RESOLVED], one, "o", color="tab:blue")
    axes.axhline(1, linestyle="--", color="tab:gray", label="independent")
    axes.set(
        xlabel="angle of query and key, degrees", ylabel="squared error over that of independent ones", ylim=(0, 1.1)
    )
    axes.set_xticks(range(0, 181, 30))
    axes.legend()
