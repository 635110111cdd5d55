"""CALM: of a thousand calibration sets no more than epsilon choose a threshold that breaks the promise."""

from collections.abc import Sequence
from functools import partial
from math import sqrt
from statistics import mean
from typing import Any

import numpy

from kinformer.decoding.consistency import By
from kinformer.lab.claims.support.half_easy import SMALL, Lost, Size, full, lost, prompts, rules, trained
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure
from kinformer.nn.exits.learn_then_test import learn_then_test

EPSILON, SETS, DRAWN, TEXTS, GRID = 0.05, 1000, 200, 320, 11
DELTAS = (0.1, 0.2, 0.3)
SAYS = "Learn then Test keeps the mean loss at delta in all but a share epsilon of calibration sets"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, section 4; Angelopoulos et al., 2021, arXiv:2110.01052"
KINDS: tuple[By, ...] = ("textual", "risk")


def violations(losses: Sequence[Sequence[float]], delta: float, chance: numpy.random.Generator, sets: int) -> float:
    """The share of calibration sets, drawn again from all texts, whose threshold loses more than delta in the mean.

    `losses` has a row for each threshold, the safest first; all of its texts are what the sets are drawn from, so that
    the mean over them is the expectation that is promised.
    """
    table = numpy.array(losses)
    risk, broken = table.mean(1), 0
    for _ in range(sets):
        some = table[:, chance.integers(0, table.shape[1], DRAWN)]
        found = learn_then_test(range(len(table)), lambda n, some=some: some[n].tolist(), delta, EPSILON)  # type: ignore[misc]
        broken += found.threshold is not None and bool(risk[int(found.threshold)] > delta)  # type: ignore[arg-type]
    return broken / sets


def hardest(delta: float, chance: numpy.random.Generator) -> list[list[float]]:
    """Losses of 0 or 1 whose mean is a hair above delta at once: a promise that every rejection breaks."""
    ones = int(delta * TEXTS) + 1
    return [chance.permutation([1.0] * ones + [0.0] * (TEXTS - ones)).tolist()]


def table(seed: int, size: Size = SMALL, texts: int = TEXTS) -> list[Lost]:
    """What each threshold of the grid loses, of a trained model that leaves by its softmax response."""
    model = trained(seed, size)
    rule, given = rules(model)["softmax response"], prompts(model, "valid", texts)
    whole = full(model, given)
    return [lost(model, rule, threshold, given, whole) for threshold in rule.grid(GRID)]


def claim(seeds: Sequence[int], size: Size = SMALL, texts: int = TEXTS, sets: int = SETS) -> Claim:
    """Violations by seeds: of each consistency at the delta at which most sets break it, and of the hardest losses."""
    tables = [table(seed, size, texts) for seed in seeds]
    most = EPSILON + 3 * sqrt(EPSILON * (1 - EPSILON) / sets)
    broken: dict[str, dict[float, list[float]]] = {}
    for name in (*KINDS, "hardest"):
        broken[name] = {delta: [] for delta in DELTAS}
        for seed, found in zip(seeds, tables, strict=True):
            chance = numpy.random.default_rng(seed)
            for delta in DELTAS:
                rows = hardest(delta, chance) if name == "hardest" else [getattr(one, name) for one in found]
                broken[name][delta].append(violations(rows, delta, chance, sets))
    measures = tuple(
        Measure(f"violations, {name}, delta {delta:g}", values, "most", most)
        for name, of in broken.items()
        for delta, values in of.items()
    )
    drawn: dict[str, Draw] = {
        "mean loss of all texts": partial(_draw_risk, tables),
        f"violations among {sets:,} calibration sets of {DRAWN}": partial(_draw_broken, broken, most),
    }
    return Claim(SAYS, SOURCE, measures, {}, drawn)


def _draw_risk(tables: Sequence[Sequence[Lost]], axes: Any) -> None:
    at = [1 - n / (GRID - 1) for n in range(GRID)]
    for name, colour in zip(KINDS, ("tab:blue", "tab:orange"), strict=True):
        for n, found in enumerate(tables):
            axes.plot(at, [mean(getattr(one, name)) for one in found], color=colour, label=None if n else name)
    for delta in DELTAS:
        axes.axhline(delta, color="tab:gray", lw=0.7, ls="--")
    axes.set(xlabel="threshold", ylabel="mean loss", xlim=(1, 0))
    axes.legend()


def _draw_broken(broken: dict[str, dict[float, list[float]]], most: float, axes: Any) -> None:
    for n, (name, of) in enumerate(broken.items()):
        for delta, values in of.items():
            axes.plot(
                [delta + (n - 1) * 0.012] * len(values),
                values,
                "o",
                color=f"C{n}",
                label=name if delta == DELTAS[0] else None,
            )
    axes.axhline(EPSILON, color="tab:gray", lw=0.7, label="epsilon")
    axes.axhline(most, color="tab:gray", lw=0.7, ls="--", label="epsilon and 3 standard errors")
    axes.set(xlabel="delta", ylabel="share of sets", xticks=DELTAS, ylim=(-0.005, 0.09))
    axes.legend(fontsize=8, loc="center")
