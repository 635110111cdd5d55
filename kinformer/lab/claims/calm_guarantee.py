"""CALM: of a thousand calibration sets no more than epsilon choose a threshold that breaks the promise."""

from collections.abc import Sequence
from math import sqrt
from statistics import mean

import numpy

from kinformer.decoding.consistency import By
from kinformer.lab.calibrate.learn_then_test import learn_then_test
from kinformer.lab.claims.support.half_easy import (
    SMALL,
    Size,
    TextLosses,
    measure_losses,
    prompts,
    rules,
    train_calm,
    write_by_full_model,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine

EPSILON, SETS, SET_SIZE, TEXTS, GRID = 0.05, 1000, 200, 320, 11
DELTAS = (0.1, 0.2, 0.3)
SAYS = "Learn then Test keeps the mean loss at delta in all but a share epsilon of calibration sets"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, section 4; Angelopoulos et al., 2021, arXiv:2110.01052"
KINDS: tuple[By, ...] = ("textual", "risk")


def violations(losses: Sequence[Sequence[float]], delta: float, rng: numpy.random.Generator, sets: int) -> float:
    """The share of calibration sets, drawn again from all texts, whose threshold loses more than delta in the mean.

    `losses` has a row for each threshold, the safest first; all of its texts are what the sets are drawn from, so that
    the mean over them is the expectation that is promised.
    """
    table = numpy.array(losses)
    risk, broken = table.mean(1), 0
    for _ in range(sets):
        sample = table[:, rng.integers(0, table.shape[1], SET_SIZE)]
        test = learn_then_test(range(len(table)), lambda n, sample=sample: sample[n].tolist(), delta, EPSILON)  # type: ignore[misc]
        broken += test.threshold is not None and bool(risk[int(test.threshold)] > delta)  # type: ignore[arg-type]
    return broken / sets


def hardest_losses(delta: float, rng: numpy.random.Generator) -> list[list[float]]:
    """Losses of 0 or 1 whose mean is a hair above delta at once: a promise that every rejection breaks."""
    count = int(delta * TEXTS) + 1
    return [rng.permutation([1.0] * count + [0.0] * (TEXTS - count)).tolist()]


def table(seed: int, size: Size = SMALL, texts: int = TEXTS) -> list[TextLosses]:
    """What each threshold of the grid loses, of a trained model that leaves by its softmax response."""
    model = train_calm(seed, size)
    rule, inputs = rules(model)["softmax response"], prompts(model, "valid", texts)
    whole = write_by_full_model(model, inputs)
    return [measure_losses(model, rule, threshold, inputs, whole) for threshold in rule.grid(GRID)]


def claim(seeds: Sequence[int], size: Size = SMALL, texts: int = TEXTS, sets: int = SETS) -> Claim:
    """Violations by seeds: of each consistency at the delta at which most sets break it, and of the hardest losses."""
    tables = [table(seed, size, texts) for seed in seeds]
    limit = EPSILON + 3 * sqrt(EPSILON * (1 - EPSILON) / sets)
    broken: dict[str, dict[float, list[float]]] = {}
    for name in (*KINDS, "hardest"):
        broken[name] = {delta: [] for delta in DELTAS}
        for seed, losses in zip(seeds, tables, strict=True):
            rng = numpy.random.default_rng(seed)
            for delta in DELTAS:
                rows = (
                    hardest_losses(delta, rng)
                    if name == "hardest"
                    else [getattr(losses_at, name) for losses_at in losses]
                )
                broken[name][delta].append(violations(rows, delta, rng, sets))
    measures = tuple(
        Measure(f"violations, {name}, delta {delta:g}", values, "most", limit)
        for name, of in broken.items()
        for delta, values in of.items()
    )
    thresholds = [1 - n / (GRID - 1) for n in range(GRID)]
    lines = [
        PlotLine(thresholds, [mean(getattr(row, kind)) for row in losses], kind) for kind in KINDS for losses in tables
    ]
    risk = Plot(
        "mean loss of all texts", "threshold", "mean loss", lines, levels=[(delta, "") for delta in DELTAS], xlim=(1, 0)
    )
    violated = Plot(
        f"violations among {sets:,} calibration sets of {SET_SIZE}",
        "delta",
        "share of sets",
        samples={name: list(by_delta.values()) for name, by_delta in broken.items()},
        categories=[f"{delta:g}" for delta in DELTAS],
        levels=((EPSILON, "epsilon"), (limit, "epsilon and 3 standard errors")),
        ylim=(-0.005, 0.09),
    )
    return Claim(SAYS, SOURCE, measures, {}, (risk, violated))
