"""RFA decodes with a state of fixed size, and the error of its kernel falls as 1 / D."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.feature_map import FeatureMap
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.decoding_steps import flat_measures, measure_steps, step_facts, step_plot
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, seed_mean, slope
from kinformer.members.gpt import gpt
from kinformer.members.rfa import rfa

LENGTHS = (16, 64, 256, 1024, 2048)
WIDTH, DEPTH, HEADS, VOCAB = 64, 2, 2, 64
DIRECTIONS, PAIRS = (16, 32, 64, 128, 256), 512  # D, and pairs of vectors
DRAWS: dict[str, Any] = {"d": 256, "depth": 4, "heads": 16}  # 64 draws of directions, for heads of width 16
FALL, WITHIN = -1.0, 0.1
SAYS = "a decoding step of RFA costs the same after any number of tokens, and the error of its kernel falls as 1 / D"
SOURCE = "Peng et al., 2021, arXiv:2103.02143, abstract (decoding 2 times as fast, timed), sections 3.1 and 3.2"


class KernelErrors(NamedTuple):
    """Errors of an estimated kernel at one number of directions, mean over pairs of vectors and draws.

    measured: mean squared error.
    expected: mean squared error by the formula of `expected_error`.
    """

    measured: float
    expected: float


def feature_maps(directions: int) -> list[FeatureMap]:
    """Return the feature maps of an untrained RFA, one for each block.

    directions: number of directions of a head, D.
    """
    model = rfa(**DRAWS, features=directions, vocab=2, length=2)
    return [part for part in model.modules() if isinstance(part, FeatureMap)]


def expected_error(squared_distance: Float[Tensor, " N"], directions: int) -> Float[Tensor, " N"]:
    """Return the expected squared error of the kernel: (1 - exp(-s))^2 / (2 D) for a squared distance s.

    cos(w.(x - y)) with a normally distributed w has the mean exp(-s / 2) and the variance (1 - exp(-s))^2 / 2. The
    estimate is its mean over D independent directions.

    squared_distance: squared distances of pairs of vectors.
    directions: number of directions, D.
    """
    return (1 - (-squared_distance).exp()).square() / (2 * directions)


@torch.no_grad()
def kernel_errors(directions: int, seed: int) -> KernelErrors:
    """Compare products of an RFA's features with the Gaussian kernel, for random pairs of unit vectors.

    Each head of each block has its own directions. They are fixed by the member, so each seed has other pairs. For each
    head, a random rotation turns the pairs, which has the same effect as other directions.

    directions: number of directions, D.
    seed: seed of the pairs and of the rotations.
    """
    heads, width = DRAWS["heads"], DRAWS["d"] // DRAWS["heads"]
    errors = []
    with seeded(seed):
        x, y = (F.normalize(torch.randn(PAIRS, width, dtype=torch.float64), dim=-1) for _ in range(2))
        squared = (x - y).square().sum(-1)
        for part in feature_maps(directions):
            rotations, _ = torch.linalg.qr(torch.randn(heads, width, width, dtype=torch.float64))
            phi_x, phi_y = (part.double()((vectors @ rotations)[None], True)[0] for vectors in (x, y))
            estimates = (phi_x * phi_y).sum(-1)  # [1 H N]
            errors.append(float((estimates - (-squared / 2).exp()).square().mean()))
    return KernelErrors(mean(errors), float(expected_error(squared, directions).mean()))


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, directions: Sequence[int] = DIRECTIONS) -> Claim:
    """Measure the work and the state size of a decoding step of RFA, and the error of its kernel.

    The work is the count of numbers that operators read and write in a step. An `rfa` and a `gpt` are measured, with
    random weights and rows. The error is the mean squared difference between products of features and the Gaussian
    kernel of unit vectors. The claim holds if four conditions are met. Work and state size of `rfa` grow with an
    exponent of 0, within 0.01, in the number of earlier tokens. Its logits token by token equal the logits of the
    parallel form within 1e-10 in float64. The error grows with an exponent of -1, within 0.1, in the number of
    directions D. The error divided by `expected_error` is 1, within 0.1, at the largest D. `gpt` is only a comparison.

    The paper measures time: its translation models decode 2 times as fast, and rows of 2,048 tokens about 12 times as
    fast. Time depends on the machine, so it is not measured here.

    seeds: seeds of weights, rows and vectors.
    lengths: numbers of tokens before the step.
    directions: numbers of directions D, in rising order.
    """
    room = 2 * lengths[-1]
    sizes: dict[str, Any] = {"d": WIDTH, "depth": DEPTH, "heads": HEADS, "vocab": VOCAB, "length": room}
    makes: dict[str, Callable[[], Any]] = {"rfa": lambda: rfa(**sizes), "gpt": lambda: gpt(**sizes)}
    costs = measure_steps(makes, seeds, lengths, VOCAB)
    runs = [[kernel_errors(count, seed) for count in directions] for seed in seeds]
    errors = [[result.measured for result in run] for run in runs]
    kernel = (
        Measure(
            "growth exponent of the kernel's squared error in the number of directions",
            [slope(directions, of_seed) for of_seed in errors],
            "near",
            FALL,
            within=WITHIN,
        ),
        Measure(
            f"squared error of the kernel divided by its formula, {directions[-1]} directions",
            [run[-1].measured / run[-1].expected for run in runs],
            "near",
            1.0,
            within=WITHIN,
        ),
    )
    facts = step_facts(costs)
    facts[f"squared error of the kernel with {', '.join(map(str, directions))} directions"] = ", ".join(
        f"{error:.2g}" for error in seed_mean(errors)
    )
    means = seed_mean(errors)
    curve = Plot(
        "error of the kernel",
        "directions",
        "mean squared error",
        [PlotLine(directions, means, f"D^{slope(directions, means):.2f}", "o-")],
        log="xy",
        ticks=directions,
    )
    return Claim(SAYS, SOURCE, (*flat_measures(costs, "rfa"), *kernel), facts, (step_plot(costs), curve))
