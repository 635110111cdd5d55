"""Forecasts of a series: the rows that come as a file, and windows that are known already as a picture."""

import csv
from io import StringIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch  # noqa: E402  (the backend is chosen first)
from jaxtyping import Float  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from torch import Tensor  # noqa: E402

from kinformer.checkpoint.checkpoint import recorded  # noqa: E402
from kinformer.checkpoint.files import write as write_file  # noqa: E402
from kinformer.cli.support.picture import colour  # noqa: E402
from kinformer.core.batch import Windows  # noqa: E402
from kinformer.core.evaluating import evaluating  # noqa: E402
from kinformer.core.model import Forecaster  # noqa: E402
from kinformer.lab.data.batches import (
    device_of,  # noqa: E402
    on,  # noqa: E402
)
from kinformer.lab.data.series import SeriesData, rows_of  # noqa: E402
from kinformer.pages.saved import saved  # noqa: E402

COLUMNS = 4


def write(model: Forecaster, data: SeriesData, out: Path) -> None:
    """Write the forecast as a CSV file with the columns of the input file, atomically.

    Numbers keep all significant digits, and dates have the form of the input file. Errors: OSError, in one line, if the
    file cannot be written; no partial file remains.
    """
    rows = data.restored(_said(model, data.ahead(model)))[0].tolist()
    dates = [] if data.clock is None else data.clock.words_after(model.horizon)
    table = StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow([*([data.clock.name] if data.clock else []), *data.columns[-data.targets :]])
    lines.writerows([*dates[n : n + 1], *map(repr, row)] for n, row in enumerate(rows))
    write_file(out, table.getvalue().encode())


def draw(model: Forecaster, data: SeriesData, split: str, windows: int, out: Path) -> float:
    """Windows from all over a split, side by side, a line of pictures for each column; the model's error in them."""
    held, rows = getattr(data, split), rows_of(model)
    begin = held.some(model.context, rows, windows)
    there = held.windows(begin, rows)
    known, came = there.values.split([model.context, model.horizon], 1)
    said = {recorded(model).name: _said(model, there), **data.plain(model, known)}
    names = range(-min(data.targets, COLUMNS), 0)  # counted from the last, which is usually what matters
    figure, axes = pyplot.subplots(
        len(names), len(known), figsize=(4.5 * len(known), 2.2 * len(names)), squeeze=False, layout="constrained"
    )
    after = torch.arange(1, model.horizon + 1)
    for line, column in zip(axes, names, strict=True):
        for window, each in enumerate(line):
            before = known[window, -2 * model.horizon :]
            each.plot(
                torch.arange(1 - len(before), 1), data.restored(before)[:, column], color="tab:gray", label="known"
            )
            each.plot(after, data.restored(came[window])[:, column], color="black", label="what came")
            for place, (name, one) in enumerate(said.items()):
                drawn = data.restored(one[window])[:, column]
                each.plot(after, drawn, "-" if not place else "--", color=colour(place), label=name, linewidth=1.2)
            each.grid(alpha=0.3)
        line[0].set_ylabel(data.columns[column])
        low, high = zip(*(each.get_ylim() for each in line), strict=True)
        for each in line:
            each.set_ylim(min(low), max(high))
    for each, at in zip(axes[0], begin, strict=True):
        each.set_title(f"after row {int(at) + model.context:,} of {split}", fontsize=9)
    left = f"; {data.targets - len(names)} columns are not drawn" if len(names) < data.targets else ""
    figure.suptitle(f"{recorded(model).name}, {model.horizon} rows ahead{left}", fontsize=10)
    for each in axes[-1]:
        each.set_xlabel("rows from the last known one")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2 + len(said))
    saved(figure, out)
    pyplot.close(figure)
    return float((next(iter(said.values())) - came[..., -data.targets :]).square().mean())


def _said(model: Forecaster, batch: Windows) -> Float[Tensor, "W N M"]:
    with evaluating(model), torch.inference_mode():
        said = model.forecast(on(device_of(model), batch)).cpu()
    if not bool(said.isfinite().all()):
        raise ValueError("the model forecasts no numbers: its weights are spoiled, or too large")
    return said
