"""Errors of `informer` on ETT, of a linear map fitted by least squares and of a seasonal naive forecast; no timing.

    python bench/ett.py ETTh1.csv --out runs/ett

For horizons of 24 and 96 hours, all columns from all and the last one (OT) from itself: a small Informer is trained,
the weights that err least on valid are kept, and its mean squared error in all windows of test is told beside those of
forecasts that need no model. Columns are taken by their mean and deviation in train; train, valid and test are the 12,
4 and 4 months of the literature. A training that was stopped goes on by the same command.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from interleave import commit
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from kinformer.checkpoint.checkpoint import load
from kinformer.core.model import Forecaster
from kinformer.core.recipe import Recipe
from kinformer.lab.data.series import SeriesData, read, rows_of
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.evaluate import evaluate_batches
from kinformer.lab.train.loop import train
from kinformer.lab.train.settings import Settings
from kinformer.members.informer import informer

MONTHS = "14400"  # hours of the 20 months
HORIZONS, COLUMNS = (24, 96), {"all columns": "", "OT": "OT"}
SIZES = {"d": 64, "heads": 4, "hidden": 256}
BATCH, WATCHED, MEASURES = 16, 714, 10  # windows of a step, and of valid at each of so many measurements
RATE, WARMUP = 1e-3, 0.05
DRAWN = 2, 48  # windows in the picture, and known hours in each
RESULTS = Path(__file__).parent / "results"


class Errors(NamedTuple):
    """Mean squared errors on test: the windows they are the mean of, and the step of the weights that were kept."""

    columns: str
    horizon: int
    informer: float
    least_squares: float
    seasonal_naive: float
    valid: float
    step: int
    windows: int


def trained(data: SeriesData, horizon: int, folder: Path, steps: int, seed: int) -> tuple[Forecaster, int, float]:
    """What errs least on valid of an Informer's weights, after how many steps, and how much it errs there."""
    torch.manual_seed(seed)
    model = informer(**data.keywords, horizon=horizon, **SIZES)
    settings = Settings(
        batch=BATCH, length=1, seed=seed, measures=MEASURES, valid_bytes=WATCHED, plan=Recipe(RATE, WARMUP)
    )
    best = train(model, data, StepBudget(steps), settings, folder=folder, resume=folder.exists(), hear=_tell).best
    assert best is not None
    found = load(folder / "best")
    assert isinstance(found, Forecaster)
    return found, best.step, best.valid


def measured(data: SeriesData, model: Forecaster, columns: str, step: int, valid: float) -> Errors:
    """Errors in all windows of test."""
    starts = torch.tensor(data.test.starts(model.context, rows_of(model)))
    lots = [data.test.windows(some, rows_of(model)) for some in starts.split(64)]
    plain = data.levels(model, "test", 1, len(starts))
    score = evaluate_batches(model, lots).value
    of_all = plain["least squares"], plain["seasonal naive"]
    return Errors(columns, model.horizon, score, *of_all, valid, step, len(starts))


def show(found: Sequence[Errors]) -> None:
    """A table."""
    print("| forecast | hours | informer | least squares | seasonal naive | kept at step | on valid |")
    print("|---" * 7 + "|")
    for one in found:
        errors = " | ".join(f"{error:.3f}" for error in (one.informer, one.least_squares, one.seasonal_naive))
        print(f"| {one.columns} | {one.horizon} | {errors} | {one.step:,} | {one.valid:.3f} |")


def draw(found: Sequence[Errors], models: dict[int, Forecaster], data: SeriesData) -> Figure:
    """Errors as bars, and windows of test as every forecast has the last column, a line for each horizon."""
    figure = Figure(figsize=(15, 3.6 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), 1 + DRAWN[0], squeeze=False, width_ratios=[1, *[1.5] * DRAWN[0]])
    for line, (horizon, model) in zip(grid, models.items(), strict=True):
        _bars([one for one in found if one.horizon == horizon], line[0])
        some = data.test.sample_starts(model.context, rows_of(model), DRAWN[0] + 2)[1:-1]
        there = data.test.windows(some, rows_of(model))
        known, came = there.values.split([model.context, horizon], 1)
        with torch.inference_mode():
            said = {"informer": model.eval().forecast(there), **data.plain(model, known)}
        for n, axes in enumerate(line[1:]):
            _window(known[n], came[n], {name: one[n] for name, one in said.items()}, data, axes)
            axes.set_title(f"OT, {horizon} hours ahead, after row {int(some[n]) + model.context:,}", fontsize=10)
    for axes in grid[-1, 1:]:
        axes.set_xlabel("hours from the last known one")
    figure.legend(*grid[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("ETTh1: mean squared errors, and the last column as it is forecast from all")
    return figure


def _bars(found: Sequence[Errors], axes: Axes) -> None:
    width = 0.27
    for place, (name, field) in enumerate(
        (("informer", "informer"), ("least squares", "least_squares"), ("seasonal naive", "seasonal_naive"))
    ):
        values = [getattr(one, field) for one in found]
        bars = axes.bar([n + (place - 1) * width for n in range(len(found))], values, width, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(found)), [one.columns for one in found])
    axes.set(ylabel="mean squared error on test", title=f"{found[0].horizon} hours")


def _window(
    known: Float[Tensor, "T C"],
    came: Float[Tensor, "N C"],
    said: dict[str, Float[Tensor, "N M"]],
    data: SeriesData,
    axes: Axes,
) -> None:
    before, after = range(1 - DRAWN[1], 1), range(1, len(came) + 1)
    axes.plot(before, data.restored(known[-DRAWN[1] :])[:, -1], color="tab:gray")
    axes.plot(after, data.restored(came)[:, -1], color="black", label="what came")
    for name, one in said.items():
        axes.plot(after, data.restored(one)[:, -1], linewidth=1.3, label=name)
    axes.grid(alpha=0.3)


def _tell(line: dict[str, Any]) -> None:
    if "valid" in line:
        told = f"step {line['after']:,}: train {line['train']:.3f}, valid {line['valid']:.3f}"
        print(f"{told}, {line['minutes']:.1f} minutes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="ETTh1.csv, packed or not, of github.com/zhouhaoyi/ETDataset")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the trainings")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found, models = [], dict[int, Forecaster]()
    whole = read(given.file, rows=MONTHS)
    for columns, asked in COLUMNS.items():
        data = read(given.file, rows=MONTHS, columns=asked)
        for horizon in HORIZONS:
            print(f"{columns}, {horizon} hours", flush=True)
            folder = given.out / f"{columns.replace(' ', '_')}_{horizon}"
            model, step, valid = trained(data, horizon, folder, given.steps, given.seed)
            found.append(measured(data, model, columns, step, valid))
            if not asked:
                models[horizon] = model
    show(found)
    figure = draw(found, models, whole)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "ett.png", dpi=90)
    told = {"commit": commit(), "steps": given.steps, "seed": given.seed, "errors": [one._asdict() for one in found]}
    (RESULTS / "ett.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
