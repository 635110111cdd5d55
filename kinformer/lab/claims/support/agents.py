"""Agents that learn in an environment: how well each does after so many steps, and curves with intervals."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.data.env import read
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.agent import agent

ROWS, LENGTH = 64, 64  # environments side by side, and steps of a rollout, which is two episodes of a T-maze of 30
PIECES, ENTROPY = 4, 0.02  # with 0.01 a junction's turn is settled by chance before what was shown is remembered
SOLVED = 0.95
Measured = Literal["success", "returns"]


class LearningCurve(NamedTuple):
    """Of a training: steps in the environment, what episodes returned after these, and the share that succeeded."""

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    success: tuple[float, ...]
    parameters: int

    @property
    def solving_step(self) -> int | None:
        """After how many steps it succeeded, and did not fail again; None where it did not."""
        failed = [n for n, share in enumerate(self.success) if share < SOLVED]
        first = failed[-1] + 1 if failed else 0
        return self.steps[first] if first < len(self.steps) else None


def train_agent(
    stack: str, spec: str, seed: int, lr: float, rollouts: int, measures: int = 8, rows: int = ROWS, **keywords: Any
) -> LearningCurve:
    """An agent of these layers, taught from this seed in so many rollouts, and measured now and then."""
    data = read(spec)
    with seeded(seed):
        model = agent(stack=stack, **{"pieces": PIECES, **data.keywords, **keywords})
    each = model.epochs * model.pieces
    settings = Settings(batch=rows, length=LENGTH, lr=lr, seed=seed, measures=measures)
    points = train(model, data, StepBudget(rollouts * each), settings).points
    return LearningCurve(
        tuple(point.step // each * rows * LENGTH for point in points),
        tuple(point.valid for point in points),
        tuple(point.extras.get("success", math.nan) for point in points),
        sum(parameter.numel() for parameter in model.parameters()),
    )


def curves_plot(title: str, curves: Mapping[str, Sequence[LearningCurve]], measure: Measured = "success") -> Plot:
    """The mean over seeds of each agent, with a band of two standard errors."""
    lines = []
    for name, runs in curves.items():
        values = list(zip(*(getattr(run, measure) for run in runs), strict=True))
        middle = [mean(at) for at in values]
        half = [2 * stdev(at) / math.sqrt(len(at)) if len(at) > 1 else 0.0 for at in values]
        low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1, 1))
        lines.append(PlotLine(runs[0].steps, middle, name, band=(low, high)))
    ylabel = "return" if measure == "returns" else measure
    return Plot(title, "steps in the environment", ylabel, lines)
