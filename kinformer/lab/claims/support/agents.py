"""Trained agents for claims: their learning curves, and plots with error bands."""

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

ROWS, LENGTH = 64, 64  # parallel environments, and steps per rollout: two episodes of a T-maze of 30
PIECES, ENTROPY = 4, 0.02  # with 0.01 the agent settles on a random turn before it remembers the cue
SOLVED = 0.95
Measured = Literal["success", "returns"]


class LearningCurve(NamedTuple):
    """Learning curve of one training of an agent.

    steps: number of environment steps at each evaluation.
    returns: mean return of the evaluated episodes.
    success: share of the evaluated episodes that succeed; NaN if the environment does not report success.
    parameters: number of weights of the agent.
    """

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    success: tuple[float, ...]
    parameters: int

    @property
    def solving_step(self) -> int | None:
        """Number of environment steps after which `success` stays at 0.95 or more; None if it never does."""
        failed = [n for n, share in enumerate(self.success) if share < SOLVED]
        first = failed[-1] + 1 if failed else 0
        return self.steps[first] if first < len(self.steps) else None


def train_agent(
    stack: str, spec: str, seed: int, lr: float, rollouts: int, measures: int = 8, rows: int = ROWS, **keywords: Any
) -> LearningCurve:
    """Train an agent in an environment and return its learning curve.

    stack: member (named model) whose layers the agent has, with keywords, such as "gtrxl(d=32)".
    spec: the environment, as in the command-line option `--env`.
    seed: seed of the weights and of the training.
    lr: learning rate.
    rollouts: number of rollouts; each has `rows` * 64 environment steps.
    measures: number of evaluations during the training.
    rows: number of parallel environments.
    keywords: further arguments of the member `agent`.
    """
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
    """Plot the learning curve of each agent: mean over seeds, with a band of two standard errors.

    title: title of the plot.
    curves: learning curves of each agent by name, one per seed.
    measure: field of the learning curves to plot: "success" or "returns".
    """
    lines = []
    for name, runs in curves.items():
        values = list(zip(*(getattr(run, measure) for run in runs), strict=True))
        middle = [mean(at) for at in values]
        half = [2 * stdev(at) / math.sqrt(len(at)) if len(at) > 1 else 0.0 for at in values]
        low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1, 1))
        lines.append(PlotLine(runs[0].steps, middle, name, band=(low, high)))
    ylabel = "return" if measure == "returns" else measure
    return Plot(title, "steps in the environment", ylabel, lines)
