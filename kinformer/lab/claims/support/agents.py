"""Agents that learn in an environment: how well each does after so many steps, and curves with intervals."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from kinformer.lab.data.env import read
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.loop import train
from kinformer.lab.train.settings import Settings
from kinformer.members.agent import agent

ROWS, LENGTH = 64, 64  # environments side by side, and steps of a rollout, which is two episodes of a T-maze of 30
PIECES, ENTROPY = 4, 0.02  # with 0.01 a junction's turn is settled by chance before what was shown is remembered
SOLVED = 0.95


class Curve(NamedTuple):
    """Of a training: steps in the environment, what episodes returned after these, and the share that succeeded."""

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    success: tuple[float, ...]
    parameters: int

    @property
    def solved(self) -> int | None:
        """After how many steps it succeeded, and did not fail again; None where it did not."""
        failed = [n for n, share in enumerate(self.success) if share < SOLVED]
        first = failed[-1] + 1 if failed else 0
        return self.steps[first] if first < len(self.steps) else None


def learned(
    stack: str, spec: str, seed: int, lr: float, rollouts: int, measures: int = 8, rows: int = ROWS, **keywords: Any
) -> Curve:
    """An agent of these layers, taught from this seed in so many rollouts, and measured now and then."""
    data = read(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = agent(stack=stack, **{"pieces": PIECES, **data.keywords, **keywords})
    each = model.epochs * model.pieces
    settings = Settings(batch=rows, length=LENGTH, lr=lr, seed=seed, measures=measures)
    points = train(model, data, StepBudget(rollouts * each), settings).points
    return Curve(
        tuple(point.step // each * rows * LENGTH for point in points),
        tuple(point.valid for point in points),
        tuple(point.extras.get("success", math.nan) for point in points),
        sum(parameter.numel() for parameter in model.parameters()),
    )


def draw_curves(curves: Mapping[str, Sequence[Curve]], what: str, axes: Any) -> None:
    """The mean over seeds of each, and a band of two standard errors. `what` is "success" or "returns"."""
    for name, found in curves.items():
        values = list(zip(*(getattr(one, what) for one in found), strict=True))
        middle = [mean(some) for some in values]
        half = [2 * stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0 for some in values]
        (line,) = axes.plot(found[0].steps, middle, label=name, linewidth=1.6)
        low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(found[0].steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="steps in the environment", ylabel="return" if what == "returns" else what)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
