"""Pooled keys of a wide window (Poolingformer) find a needle that a narrow window misses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kinformer.core.model import Model
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.task import TaskData
from kinformer.lab.plot import Plot, seed_curves
from kinformer.lab.tasks.needle import Needle
from kinformer.lab.train.fit import fit
from kinformer.members.longformer import longformer
from kinformer.members.poolingformer import poolingformer

LENGTH, NEAR, STEPS = 64, 3, 250  # symbols per row, tokens that a window reads on either side, training steps
MINUTES = 1.5  # of a default run with three seeds
SIZES: dict[str, Any] = {"d": 32, "depth": 2, "heads": 2}
SAYS = (
    "a model with pooled keys in a wider window finds a needle there, and a model with only the narrow window does not"
)
SOURCE = "Zhang et al., 2021, arXiv:2105.04371, abstract: a larger window increases the receptive field"


class NeedleCurve(NamedTuple):
    """Learning curve of one training to find a needle (a digit at the beginning of a row).

    steps: number of training steps at each evaluation.
    accuracy: validation accuracy at each evaluation.
    """

    steps: list[int]
    accuracy: list[float]


def models(length: int) -> dict[str, Callable[[], Model]]:
    """Return functions that build three models, by the keys that their queries attend to.

    The needle (a digit to find) lies at the beginning of the row, the question at its end. The first model has a window
    and pooled keys that reach the needle. The second has only the window. In two layers, it sees 2 NEAR tokens before
    the question. The third has pooled keys that do not reach the needle: it sees a third of the row.

    length: symbols per row.
    """
    pooled: dict[str, Any] = {"near": NEAR, "kernel": 4, "stride": 2, "pool": "mean", "length": length + 2, **SIZES}
    return {
        "pooled keys": lambda: poolingformer(far=length, **pooled),
        "window only": lambda: longformer(window=NEAR, marked=0, length=length + 2, **SIZES),
        "pooled keys that end before the needle": lambda: poolingformer(far=length // 8, **pooled),
    }


def train_on_needle(name: str, seed: int, length: int, steps: int) -> NeedleCurve:
    """Train a model to give, at the end of a row, the digit of a needle at its beginning.

    name: key of `models`.
    seed: seed of the weights and of the training.
    length: symbols per row.
    steps: number of training steps.
    """
    with seeded(seed):
        task = TaskData.from_task("needle", Needle(length, 1, depth=0.0))
        points = fit(models(length)[name](), task, steps=steps, batch=16, lr=3e-3, seed=seed).points
    return NeedleCurve([point.step for point in points], [point.valid for point in points])


def claim(seeds: Sequence[int], length: int = LENGTH, steps: int = STEPS) -> Claim:
    """Compare how often models with pooled keys and models with only a window find a needle.

    The needle is a digit at the beginning of a row, and the model must give it at the end. The claim holds if the share
    of correct digits is at least 0.95 with pooled keys, and at most 0.2 with only the window; guessing gives 0.1. The
    model with only the window is `longformer`. A model whose pooled keys end before the needle is trained with one seed
    and does not affect the verdict.

    seeds: seeds of the trainings.
    length: symbols per row.
    steps: number of training steps.
    """
    reaching, window, ending = models(length)
    runs = {name: [train_on_needle(name, seed, length, steps) for seed in seeds] for name in (reaching, window)}
    short = train_on_needle(ending, seeds[0], length, steps)
    last = {name: [run.accuracy[-1] for run in of] for name, of in runs.items()}
    guessing = Needle(length, 1).chance_accuracy
    measures = (
        Measure("accuracy with pooled keys", last[reaching], "least", 0.95, no_effect=guessing),
        Measure("accuracy with only the window", last[window], "most", 0.2, no_effect=0.95),
    )
    facts = {
        "accuracy by guessing": f"{guessing:g}",
        f"accuracy with pooled keys that reach {length // 8} tokens": f"{short.accuracy[-1]:.3f} (one seed)",
        "steps of training": f"{steps}",
    }
    return Claim(SAYS, SOURCE, measures, facts, (_plot({**runs, ending: [short]}, guessing),))


def _plot(runs_by_name: dict[str, list[NeedleCurve]], guessing: float) -> Plot:
    steps = next(iter(runs_by_name.values()))[0].steps
    lines = seed_curves(steps, {name: [run.accuracy for run in runs] for name, runs in runs_by_name.items()}, "-")
    return Plot(
        "needle at the beginning of the row",
        "training steps",
        "validation accuracy",
        lines,
        levels=((guessing, "guessing"),),
        ylim=(0, 1.05),
    )
