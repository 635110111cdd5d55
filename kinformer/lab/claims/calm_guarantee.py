"""The mean loss of CALM exceeds delta for at most a share epsilon of calibration sets."""

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
SAYS = "with Learn then Test the mean loss is at most delta, except in a share epsilon of the calibration sets"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, section 4; Angelopoulos et al., 2021, arXiv:2110.01052"
KINDS: tuple[By, ...] = ("textual", "risk")


def violations(losses: Sequence[Sequence[float]], delta: float, rng: numpy.random.Generator, sets: int) -> float:
    """Return the share of calibration sets that lead to an exit threshold with a mean loss above delta.

    CALM promises an expected loss of at most delta. A calibration set is a random sample of all texts, with
    replacement, so the expected loss is the mean over all texts. The procedure Learn then Test chooses a threshold from
    each set.

    losses: losses of all texts, one row per exit threshold, the safest threshold (fewest early exits) first.
    delta: promised mean loss.
    rng: source of randomness.
    sets: number of calibration sets.
    """
    table = numpy.array(losses)
    risk, broken = table.mean(1), 0
    for _ in range(sets):
        sample = table[:, rng.integers(0, table.shape[1], SET_SIZE)]
        test = learn_then_test(range(len(table)), lambda n, sample=sample: sample[n].tolist(), delta, EPSILON)  # type: ignore[misc]
        broken += test.threshold is not None and bool(risk[int(test.threshold)] > delta)  # type: ignore[arg-type]
    return broken / sets


def hardest_losses(delta: float, rng: numpy.random.Generator) -> list[list[float]]:
    """Return losses of 0 or 1 of all texts at a single exit threshold, with a mean slightly above delta.

    It is the worst case for a calibration: every calibration set that accepts the threshold breaks the promise.

    delta: promised mean loss.
    rng: source of randomness.
    """
    count = int(delta * TEXTS) + 1
    return [rng.permutation([1.0] * count + [0.0] * (TEXTS - count)).tolist()]


def table(seed: int, size: Size = SMALL, texts: int = TEXTS) -> list[TextLosses]:
    """Train a CALM and return the losses of its texts at each exit threshold of the softmax response.

    seed: seed of the training.
    size: width, steps and learning rate of the model.
    texts: number of texts.
    """
    model = train_calm(seed, size)
    rule, inputs = rules(model)["softmax response"], prompts(model, "valid", texts)
    whole = write_by_full_model(model, inputs)
    return [measure_losses(model, rule, threshold, inputs, whole) for threshold in rule.grid(GRID)]


def claim(seeds: Sequence[int], size: Size = SMALL, texts: int = TEXTS, sets: int = SETS) -> Claim:
    """Count the calibration sets that break CALM's promise, for a trained model and for a worst case.

    The promise: the exit threshold that a calibration set leads to has a mean loss of at most delta, except in a share
    epsilon of the sets. Measured here: the share of 1,000 sets of 200 texts that break the promise, at deltas of 0.1,
    0.2 and 0.3. The loss of a text is its distance from the full model's text ("textual"), its additional distance from
    the reference ("risk"), or 0 or 1 with a mean just above delta ("hardest"). The claim holds if no share exceeds
    epsilon = 0.05 plus three standard errors.

    seeds: seeds of the trainings.
    size: width, steps and learning rate of the model.
    texts: number of texts per model.
    sets: number of calibration sets.
    """
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
        Measure(f"share of sets that break the promise, {name}, delta {delta:g}", values, "most", limit)
        for name, of in broken.items()
        for delta, values in of.items()
    )
    thresholds = [1 - n / (GRID - 1) for n in range(GRID)]
    lines = [
        PlotLine(thresholds, [mean(getattr(row, kind)) for row in losses], kind) for kind in KINDS for losses in tables
    ]
    risk = Plot(
        "mean loss over all texts",
        "threshold",
        "mean loss",
        lines,
        levels=[(delta, "") for delta in DELTAS],
        xlim=(1, 0),
    )
    violated = Plot(
        f"broken promises among {sets:,} calibration sets of {SET_SIZE} texts",
        "delta",
        "share of sets",
        samples={name: list(by_delta.values()) for name, by_delta in broken.items()},
        categories=[f"{delta:g}" for delta in DELTAS],
        levels=((EPSILON, "epsilon"), (limit, "epsilon + 3 standard errors")),
        ylim=(-0.005, 0.09),
    )
    return Claim(SAYS, SOURCE, measures, {}, (risk, violated))
