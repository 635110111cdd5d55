"""Poolingformer: pooled keys of a wide window find what lies beyond the narrow one, which alone does not."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kinformer.core.model import Model
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.task import TaskData
from kinformer.lab.plot import Plot, PlotLine, seed_mean
from kinformer.lab.tasks.needle import Needle
from kinformer.lab.train.fit import fit
from kinformer.members.longformer import longformer
from kinformer.members.poolingformer import poolingformer

LENGTH, NEAR, STEPS = 64, 3, 250  # symbols of a row, what a window reads on either side, and steps of training
SIZES: dict[str, Any] = {"d": 32, "depth": 2, "heads": 2}
SAYS = "a needle beyond the window and within the wider one of pooled keys is found, and by the window alone it is not"
SOURCE = "Zhang et al., 2021, arXiv:2105.04371, abstract: a larger window increases the receptive field"


class NeedleCurve(NamedTuple):
    """Steps, and the accuracy on rows of valid at each."""

    steps: list[int]
    accuracy: list[float]


def models(length: int) -> dict[str, Callable[[], Model]]:
    """By what they read: a window alone, and pooled keys that reach the needle or do not.

    The needle lies at the row's begin. In two layers a window sees 2 NEAR tokens before the one that asks, and with it
    the short pooled keys a third of the row.
    """
    pooled: dict[str, Any] = {"near": NEAR, "kernel": 4, "stride": 2, "pool": "mean", "length": length + 2, **SIZES}
    return {
        "pooled keys": lambda: poolingformer(far=length, **pooled),
        "window alone": lambda: longformer(window=NEAR, marked=0, length=length + 2, **SIZES),
        "pooled keys that end before it": lambda: poolingformer(far=length // 8, **pooled),
    }


def train_on_needle(name: str, seed: int, length: int, steps: int) -> NeedleCurve:
    """Trained to give the digit of a needle at the begin of a row, at its end."""
    with seeded(seed):
        task = TaskData.from_task("needle", Needle(length, 1, depth=0.0))
        points = fit(models(length)[name](), task, steps=steps, batch=16, lr=3e-3, seed=seed).points
    return NeedleCurve([point.step for point in points], [point.valid for point in points])


def claim(seeds: Sequence[int], length: int = LENGTH, steps: int = STEPS) -> Claim:
    """The share of digits that are right: with pooled keys nearly all, by a window what guessing gets."""
    reaching, window, ending = models(length)
    runs = {name: [train_on_needle(name, seed, length, steps) for seed in seeds] for name in (reaching, window)}
    short = train_on_needle(ending, seeds[0], length, steps)
    last = {name: [run.accuracy[-1] for run in of] for name, of in runs.items()}
    guessing = Needle(length, 1).chance_accuracy
    measures = (
        Measure("accuracy with pooled keys", last[reaching], "least", 0.95, no_effect=guessing),
        Measure("accuracy of the window alone", last[window], "most", 0.2, no_effect=0.95),
    )
    facts = {
        "accuracy by guessing": f"{guessing:g}",
        f"with pooled keys that reach {length // 8} tokens": f"{short.accuracy[-1]:.3f} (one seed)",
        "steps of training": f"{steps}",
    }
    return Claim(SAYS, SOURCE, measures, facts, (_plot({**runs, ending: [short]}, guessing),))


def _plot(runs_by_name: dict[str, list[NeedleCurve]], guessing: float) -> Plot:
    lines = []
    for colour, (name, runs) in zip(("tab:blue", "tab:gray", "tab:orange"), runs_by_name.items(), strict=True):
        lines += [PlotLine(run.steps, run.accuracy, "", "-", colour, 0.3) for run in runs]
        lines.append(PlotLine(runs[0].steps, seed_mean([run.accuracy for run in runs]), name, "-", colour))
    return Plot(
        "a needle at the begin", "steps", "accuracy of valid", lines, levels=((guessing, "guessing"),), ylim=(0, 1.05)
    )
