"""The recipe of members: each learning rate and warm-up from several seeds, by the metric on valid after as many steps.

    python bench/rates.py gpt transformer_xl --steps 150 --rates 5e-4 1e-3 2e-3 4e-3
    python bench/rates.py "bert(d=64)" --data text=novel.txt --rates 2e-3:0.05 1e-3:0.2

A rate alone has the member's own warm-up. A member's `Recipe` takes what has the best median; two that are nearer than
their seeds are as good. No timing.
"""

import argparse
import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from kinformer.lab.data.spec import read_spec
from kinformer.lab.member_choice import parse_member_text
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train

RATES = ("2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3")


class Reached(NamedTuple):
    """The metric on the first bytes of valid after a training, and the same so that less is better."""

    valid: float
    loss: float


def reached(member: str, data: str, rate: str, seed: int, steps: int) -> Reached | None:
    """What a training reaches, None where it was stopped."""
    settings = Settings(batch=4, length=128, seed=seed, measures=1, valid_bytes=16_384)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            model = parse_member_text(member).build(seed)
            own = settings.recipe(model)
            lr, _, warmup = rate.partition(":")
            plan = replace(own, lr=float(lr), warmup=float(warmup or own.warmup))
            history = train(model, read_spec(data), StepBudget(steps), replace(settings, plan=plan))
        except TrainingStopped:
            return None
    valid = history.points[-1].valid
    return Reached(valid, valid if history.metric.better == "less" else -valid)


def search(members: Sequence[str], data: str, rates: Sequence[str], seeds: int, steps: int) -> None:
    """One row for each member: the median and the range of each rate."""
    print(f"{steps} steps of 4 x 128 tokens of {data}, {seeds} seeds: the median on valid (lowest to highest)\n")
    print(f"| member | {' | '.join(rates)} | best |\n|{'---|' * (len(rates) + 2)}")
    for member in members:
        runs_by_rate = {rate: [reached(member, data, rate, seed, steps) for seed in range(seeds)] for rate in rates}
        losses = {rate: [math.inf if run is None else run.loss for run in runs] for rate, runs in runs_by_rate.items()}
        best = min(losses, key=lambda rate: median(losses[rate]))
        cells = [_cell(runs) for runs in runs_by_rate.values()]
        print(f"| {member} | {' | '.join(cells)} | {best} |", flush=True)


def _cell(runs: Sequence[Reached | None]) -> str:
    """The median and the range of seeds, of which some may have been stopped."""
    values = sorted(run.valid for run in runs if run is not None)
    summary = f"{median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})" if values else ""
    stopped = len(runs) - len(values)
    return f"{summary}{', ' if summary and stopped else ''}{f'{stopped} stopped' if stopped else ''}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", nargs="+")
    parser.add_argument("--data", default="text=stdlib")
    parser.add_argument("--rates", nargs="+", default=RATES, metavar="RATE[:WARMUP]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    search(options.members, options.data, options.rates, options.seeds, options.steps)
