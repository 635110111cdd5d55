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
from kinformer.core.training_recipe import Recipe
from kinformer.lab.data.series import SeriesData, read, rows_of
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.evaluate import evaluate_batches
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
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
    best = train(model, data, StepBudget(steps), settings, folder=folder, resume=folder.exists(), on_metrics=_tell).best
    assert best is not None
    best_model = load(folder / "best")
    assert isinstance(best_model, Forecaster)
    return best_model, best.step, best.valid


def measured(data: SeriesData, model: Forecaster, columns: str, step: int, valid: float) -> Errors:
    """Errors in all windows of test."""
    starts = torch.tensor(data.test.window_starts(model.context, rows_of(model)))
    lots = [data.test.windows(chunk, rows_of(model)) for chunk in starts.split(64)]
    plain = data.levels(model, "test", 1, len(starts))
    score = evaluate_batches(model, lots).value
    of_all = plain["least squares"], plain["seasonal naive"]
    return Errors(columns, model.horizon, score, *of_all, valid, step, len(starts))


def show(results: Sequence[Errors]) -> None:
    """A table."""
    print("| forecast | hours | informer | least squares | seasonal naive | kept at step | on valid |")
    print("|---" * 7 + "|")
    for result in results:
        errors = " | ".join(f"{error:.3f}" for error in (result.informer, result.least_squares, result.seasonal_naive))
        print(f"| {result.columns} | {result.horizon} | {errors} | {result.step:,} | {result.valid:.3f} |")


def draw(results: Sequence[Errors], models: dict[int, Forecaster], data: SeriesData) -> Figure:
    """Errors as bars, and windows of test as every forecast has the last column, a line for each horizon."""
    figure = Figure(figsize=(15, 3.6 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), 1 + DRAWN[0], squeeze=False, width_ratios=[1, *[1.5] * DRAWN[0]])
    for line, (horizon, model) in zip(grid, models.items(), strict=True):
        _bars([result for result in results if result.horizon == horizon], line[0])
        starts = data.test.sample_starts(model.context, rows_of(model), DRAWN[0] + 2)[1:-1]
        windows = data.test.windows(starts, rows_of(model))
        history, actual = windows.values.split([model.context, horizon], 1)
        with torch.inference_mode():
            forecasts = {"informer": model.eval().forecast(windows), **data.baseline_forecasts(model, history)}
        for n, axes in enumerate(line[1:]):
            _window(history[n], actual[n], {name: result[n] for name, result in forecasts.items()}, data, axes)
            axes.set_title(f"OT, {horizon} hours ahead, after row {int(starts[n]) + model.context:,}", fontsize=10)
    for axes in grid[-1, 1:]:
        axes.set_xlabel("hours from the last known one")
    figure.legend(*grid[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("ETTh1: mean squared errors, and the last column as it is forecast from all")
    return figure


def _bars(results: Sequence[Errors], axes: Axes) -> None:
    width = 0.27
    for place, (name, field) in enumerate(
        (("informer", "informer"), ("least squares", "least_squares"), ("seasonal naive", "seasonal_naive"))
    ):
        values = [getattr(result, field) for result in results]
        bars = axes.bar([n + (place - 1) * width for n in range(len(results))], values, width, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(results)), [result.columns for result in results])
    axes.set(ylabel="mean squared error on test", title=f"{results[0].horizon} hours")


def _window(
    history: Float[Tensor, "T C"],
    actual: Float[Tensor, "N C"],
    forecasts: dict[str, Float[Tensor, "N M"]],
    data: SeriesData,
    axes: Axes,
) -> None:
    before, after = range(1 - DRAWN[1], 1), range(1, len(actual) + 1)
    axes.plot(before, data.unscale(history[-DRAWN[1] :])[:, -1], color="tab:gray")
    axes.plot(after, data.unscale(actual)[:, -1], color="black", label="what came")
    for name, forecast in forecasts.items():
        axes.plot(after, data.unscale(forecast)[:, -1], linewidth=1.3, label=name)
    axes.grid(alpha=0.3)


def _tell(line: dict[str, Any]) -> None:
    if "valid" in line:
        summary = f"step {line['after']:,}: train {line['train']:.3f}, valid {line['valid']:.3f}"
        print(f"{summary}, {line['minutes']:.1f} minutes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="ETTh1.csv, packed or not, of github.com/zhouhaoyi/ETDataset")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the trainings")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results, models = [], dict[int, Forecaster]()
    whole = read(options.file, rows=MONTHS)
    for columns, chosen in COLUMNS.items():
        data = read(options.file, rows=MONTHS, columns=chosen)
        for horizon in HORIZONS:
            print(f"{columns}, {horizon} hours", flush=True)
            folder = options.out / f"{columns.replace(' ', '_')}_{horizon}"
            model, step, valid = trained(data, horizon, folder, options.steps, options.seed)
            results.append(measured(data, model, columns, step, valid))
            if not chosen:
                models[horizon] = model
    show(results)
    figure = draw(results, models, whole)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "ett.png", dpi=90)
    report = {
        "commit": commit(),
        "steps": options.steps,
        "seed": options.seed,
        "errors": [result._asdict() for result in results],
    }
    (RESULTS / "ett.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
