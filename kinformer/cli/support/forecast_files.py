"""Forecasts of a series: the next rows as a CSV file, or forecasts of known windows as a picture."""

import csv
from io import StringIO
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.checkpoint.atomic_files import write as write_file
from kinformer.checkpoint.checkpoint import member_record
from kinformer.core.batch import SeriesWindows
from kinformer.core.eval_mode import evaluating
from kinformer.core.model import Forecaster
from kinformer.lab.data.batches import device_of, to_device
from kinformer.lab.data.series import SeriesData, rows_of
from kinformer.lab.plot import Plot, PlotLine
from kinformer.pages.plots import colour, save_plots

COLUMNS = 4


def write(model: Forecaster, data: SeriesData, out: Path) -> None:
    """Write the forecast of the next rows as a CSV file with the columns of the data file.

    model: the forecaster.
    data: the series; the model reads its last `model.context` rows.
    out: the file to write.

    Numbers keep all significant digits, and dates have the form that they have in the data file. Errors: OSError, in
    one line, if the file cannot be written; no partial file remains.
    """
    rows = data.unscale(_forecast(model, data.future_window(model)))[0].tolist()
    dates = [] if data.clock is None else data.clock.words_after(model.horizon)
    table = StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow([*([data.clock.name] if data.clock else []), *data.columns[-data.targets :]])
    lines.writerows([*dates[n : n + 1], *map(repr, row)] for n, row in enumerate(rows))
    write_file(out, table.getvalue().encode())


def draw(model: Forecaster, data: SeriesData, split: str, windows: int, out: Path) -> float:
    """Draw forecasts of windows spread over a split, and return their mean squared error.

    model: the forecaster.
    data: the series.
    split: "train", "valid" or "test".
    windows: number of windows to draw; each is a column of plots.
    out: the picture file. It has a row of plots for each of the last 4 target columns.

    The error is computed on the scaled data, not in the units of the file.
    """
    series, rows = getattr(data, split), rows_of(model)
    begin = series.sample_starts(model.context, rows, windows)
    batch = series.windows(begin, rows)
    context, future = batch.values.split([model.context, model.horizon], 1)
    forecasts = {member_record(model).name: _forecast(model, batch), **data.baseline_forecasts(model, context)}
    before, after = range(1 - min(2 * model.horizon, model.context), 1), range(1, model.horizon + 1)
    plots = []
    columns = range(-min(data.targets, COLUMNS), 0)  # the last columns, because the target is usually the last
    for column in columns:
        for window, at in enumerate(begin):
            past = context[window, -2 * model.horizon :]
            lines = [PlotLine(before, _numbers(data, past, column), "known", colour="tab:gray")]
            lines.append(PlotLine(after, _numbers(data, future[window], column), "true", colour="black"))
            for place, (name, values) in enumerate(forecasts.items()):
                style = "--" if place else "-"
                lines.append(PlotLine(after, _numbers(data, values[window], column), name, style, colour(place)))
            title = f"after row {int(at) + model.context:,} of {split}" if column == columns[0] else ""
            xlabel = "rows after the last known row" if column == columns[-1] else ""
            plots.append(Plot(title, xlabel, "" if window else data.columns[column], lines))
    left = f"; {data.targets - len(columns)} more columns not drawn" if len(columns) < data.targets else ""
    title = f"{member_record(model).name}, {model.horizon} rows ahead{left}"
    save_plots(plots, title, out, columns=len(context), size=(4.5, 2.2), share_y=True, one_legend=True)
    return float((next(iter(forecasts.values())) - future[..., -data.targets :]).square().mean())


def _numbers(data: SeriesData, rows: Float[Tensor, "N C"], column: int) -> list[float]:
    """A column in the units of the file."""
    return data.unscale(rows)[:, column].tolist()


def _forecast(model: Forecaster, batch: SeriesWindows) -> Float[Tensor, "W N M"]:
    with evaluating(model), torch.inference_mode():
        values = model.forecast(to_device(device_of(model), batch)).cpu()
    if not bool(values.isfinite().all()):
        raise ValueError(
            "the model's forecast is not finite, because its weights are damaged or too large. Use another checkpoint"
        )
    return values
