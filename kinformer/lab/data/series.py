"""Series of numbers: a file of columns with one row per time, such as hourly measurements.

Choose `series=FILE.csv` for a model that forecasts. A batch is `SeriesWindows`: consecutive rows, with the dates of the
rows if a column holds dates. Each column is standardized by its mean and deviation in train. A model keeps the names,
means and deviations of its training columns. Later files are standardized by these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.batch import SeriesWindows
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.model import ColumnScales, Forecaster, Model, display_name
from kinformer.core.quote import quote
from kinformer.core.warn import warn
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.support.dates import Clock, Column, calendar, dates_of
from kinformer.lab.data.support.forecast_baselines import least_squares, seasonal_naive
from kinformer.lab.data.support.safe_scales import constant_columns
from kinformer.lab.data.support.series_table import LEAST, parse_finite, parse_number, read_table
from kinformer.lab.data.support.series_windows import SeriesSplit
from kinformer.lab.data.support.standardized_columns import column_scales, standardize

FORM, SERVES = "series=FILE.csv", ("series",)
ENDS = 0.6, 0.8  # ends of train and valid: 12, 4 and 4 months of 20, the split of ETT
MEASURED, LEARNED = 64, 512  # windows of a validation batch, and of a batch for the linear baseline


@dataclass(frozen=True, eq=False)
class SeriesData(Data):
    """A series of numbers, split into three consecutive stretches of time.

    name: the specification of the data, "series=...".
    train, valid, test: the standardized rows of each stretch, with the rows before it as context.
    columns: names of the numbers in a row.
    numbers: all rows in the units of the file.
    scale: means and deviations that standardize the stretches, from train or from a model (`for_model`).
    targets: number of columns that are forecast; they are the last columns.
    clock: the dates of the rows; None if no column has them.
    split: one line about how the data is split in three.
    row_numbers: columns that only number the rows, by name. They are left out, unless a model was trained on a column
        of that name.
    """

    noun: ClassVar[str] = "a series"
    counted: ClassVar[str] = "numbers"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sized = False
    name: str
    train: SeriesSplit
    valid: SeriesSplit
    test: SeriesSplit
    columns: tuple[str, ...]
    numbers: Float[Tensor, "N C"]
    scale: Float[Tensor, "2 C"]
    targets: int
    clock: Clock | None = None
    split: str = ""
    row_numbers: Mapping[str, Float[Tensor, " N"]] = field(default_factory=dict)

    @property
    def season(self) -> int | None:
        """Number of rows after which such a series usually repeats, such as 24 for hours; None if unknown."""
        return None if self.clock is None else self.clock.season

    @property
    def keywords(self) -> dict[str, Any]:
        return {"channels": len(self.columns), "targets": self.targets, "calendar": self.train.calendar.shape[1]}

    def longest_length(self, length: int) -> None:
        return None

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"up to {self._sample_size(length, limit):,} windows of {split}"

    def store_scales(self, model: Model) -> None:
        """Store the names, means and deviations of these columns in a model that has none."""
        if model.columns is None:
            mean, deviation = self.scale.tolist()
            model.columns = ColumnScales(self.columns, tuple(mean), tuple(deviation))

    def for_model(self, model: Model) -> "SeriesData":
        """Return this series with the columns of the model, in its order, with its means and deviations.

        Columns are selected by name, and columns that the model does not know are left out. A column of row numbers is
        kept if the model was trained on a column of that name. A model without stored columns, such as an untrained
        one, takes the columns in the order of the file, with their means and deviations in train.

        Errors: ValueError, in one line, if a column is missing or occurs twice, or if the targets differ.
        """
        if model.columns is None:
            return self
        names, *scale = model.columns
        counters = [name for name in self.row_numbers if name in names and name not in self.columns]
        columns = (*self.columns, *counters)
        numbers = torch.cat([self.numbers, *(self.row_numbers[name][:, None] for name in counters)], 1)
        order = range(len(names)) if names == columns else self._column_indices(columns, names, display_name(model))
        targets = getattr(model, "targets", len(names))
        if self.targets < len(self.columns) and {*self.columns[-self.targets :]} != {*names[-targets:]}:
            raise ValueError(
                f"{self.name} has other targets than this {display_name(model)}: got "
                f"{'+'.join(self.columns[-self.targets :]):.150}, expected {'+'.join(names[-targets:]):.150}. "
                "Leave out target=."
            )
        numbers, by = numbers[:, list(order)], torch.tensor(scale, dtype=torch.float64)
        values = standardize(self.name, names, numbers, by)
        train, valid, test = (
            stretch._replace(values=values[: len(stretch.values)]) for stretch in (self.train, self.valid, self.test)
        )
        return replace(
            self, train=train, valid=valid, test=test, columns=names, numbers=numbers, scale=by, targets=targets
        )

    def check_for_model(self, model: Model) -> "SeriesData":
        """Return `for_model(model)`, the series with the columns of a model, after a check of its sizes.

        A warning is given if a model in eval mode has no stored names and scales of columns.

        Errors: the errors of `for_model`, and ValueError if the model has other sizes.
        """
        if model.columns is None and not model.training:
            warn(
                f"this {display_name(model)} has no stored names and scales of columns, like older models. "
                f"The columns of {self.name} are used in their order, with the mean and deviation of its first 60%"
            )
        series = self.for_model(model)
        for name, number in series.keywords.items():
            if (expected := getattr(model, name, number)) != number:
                left = ", ".join(map(repr, self.row_numbers)) if name == "channels" else ""
                counted = f", or add the row numbers {left} to columns=" if left else ""
                raise ValueError(
                    f"{self.name} has {name}={number}, but this model has {expected}; give {name}={number}{counted}"
                )
        return series

    def _column_indices(self, columns: Sequence[str], names: Sequence[str], member: str) -> list[int]:
        """Return the indices of the named columns; raise ValueError if a name is missing or occurs twice."""
        missing = [name for name in names if columns.count(name) == 0]
        if missing:
            raise ValueError(
                f"{self.name} lacks columns of numbers that this {member} was trained on: got "
                f"{', '.join(columns):.150}, expected {', '.join(missing):.150} too. "
                "Give a file, and columns=, with the column names of the training data."
            )
        twice = [name for name in names if columns.count(name) > 1 or names.count(name) > 1]
        if twice:
            raise ValueError(
                f"columns of {self.name} cannot be selected by name: got several columns {twice[0]!r}, expected one. "
                "Put all columns in the order of the training data."
            )
        return [columns.index(name) for name in names]

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return random training windows, fixed by seed and step, and evenly spread validation windows.

        The model sets the length of windows (`context` and `horizon`) if it forecasts; `length` then has no effect on
        it. The forecast rows of a validation window are in valid; its context may begin before. All windows of valid
        are used, or as many as the limit allows.

        Errors: ValueError if train or valid is shorter than a window, or if the model has other columns.
        """
        series = self.check_for_model(model)
        context, rows = (model.context, rows_of(model)) if isinstance(model, Forecaster) else (0, length)
        # evaluate replaces valid by the split that it measures
        for name, stretch in (("train", series.train), ("test" if self.valid is self.test else "valid", series.valid)):
            stretch.check_holds(f"{name} of {self.name}", context, rows)
        begins = series.train.window_starts(context, rows)

        def draw_batch(step: int) -> SeriesWindows:
            starts = numpy.random.default_rng((seed, step)).integers(begins.start, begins.stop, size=batch)
            return series.train.windows(torch.from_numpy(starts), rows)

        watched = series.valid.sample_starts(context, rows, self._sample_size(length, limit))
        return Batches(draw_batch, [series.valid.windows(lot, rows) for lot in watched.split(MEASURED)])

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return the mean squared errors of simple forecasts, on the windows on which a model is measured.

        - A linear map of the context of a target, fitted by least squares on all windows of train.
        - The last row, repeated.
        - The last season, repeated, if the dates name a season that is no longer than the context.
        """
        if not isinstance(model, Forecaster):
            return {}
        series = self.for_model(model)
        stretch, rows = getattr(series, split), rows_of(model)
        starts = stretch.sample_starts(model.context, rows, self._sample_size(length, limit))
        context, targets = stretch.windows(starts, rows).values.split([model.context, model.horizon], 1)
        forecasts = series.baseline_forecasts(model, context)
        targets = targets[..., -series.targets :]
        return {name: float((forecast - targets).square().double().mean()) for name, forecast in forecasts.items()}

    def baseline_forecasts(
        self, model: Forecaster, context: Float[Tensor, "W T C"]
    ) -> Mapping[str, Float[Tensor, "W N M"]]:
        """Return simple forecasts of the targets by name; the first is by a fitted linear map.

        model: the forecaster, which only sets the number of known rows and of rows to forecast.
        context: the known rows of the windows.
        """
        context = context[..., -self.targets :]
        starts, rows = torch.tensor(self.train.window_starts(model.context, rows_of(model))), rows_of(model)
        learned = (self.train.windows(lot, rows).values[..., -self.targets :] for lot in starts.split(LEARNED))
        forecasts = {"least squares": least_squares(learned, model.context)(context)}
        forecasts["last row"] = seasonal_naive(context, model.horizon, 1)
        if self.season is not None and self.season <= model.context:
            forecasts["seasonal naive"] = seasonal_naive(context, model.horizon, self.season)
        return forecasts

    def future_window(self, model: Forecaster) -> SeriesWindows:
        """Return the window with the last rows of the file as context and zeros for the rows to forecast.

        Errors: ValueError if the file has fewer rows than the context of the model.
        """
        if len(self.numbers) < model.context:
            raise ValueError(
                f"{self.name} is too short to forecast from: got {len(self.numbers):,} rows, expected at least "
                f"{model.context:,}, the context of the model. Give more rows."
            )
        values = self.test.values[-model.context :]
        coming = values.new_zeros(model.horizon, 0)
        if self.clock is not None:
            coming = calendar(self.clock.next_dates(model.horizon))
        dates = torch.cat([self.test.calendar[-model.context :], coming])
        return SeriesWindows(torch.cat([values, values.new_zeros(model.horizon, len(self.columns))])[None], dates[None])

    def unscale(self, values: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """Return standardized values of the last C columns in the units of the file."""
        mean, deviation = self.scale[:, -values.shape[-1] :]
        return values.double() * deviation + mean

    def _sample_size(self, length: int, limit: int) -> int:
        return max(1, limit // max(length, 1))


@named
def read(where: str, rows: str = "", columns: str = "", target: str = "") -> SeriesData:
    """Read the numeric columns of a file, compressed or not, and the calendar of its date column.

    Columns are separated by commas. Dates have the form 2016-07-01 00:00:00, 2016/07/01, 01.07.2016, 07/31/2016 or
    20160701, or are seconds or milliseconds since 1970. Rows must be in the order of their dates; gaps cause a warning.

    Other columns of text and row numbers are left out, and the line about the split names them. Row numbers are a first
    column of 0, 1, 2, ... or 1, 2, 3, ..., or a column that rises by 1 and is named index, id or row or has no name.
    The options `columns` and `target` keep a column that they name. A model that was trained on such a column reads it.

    The split is by time: the first 60% for training, the next 20% for validation, the rest for the test. Numbers are
    standardized by their mean and deviation in train, so later rows do not leak. A model keeps both for its later
    files. A column that is constant in train up to rounding is not divided by its deviation; the line about the split
    names it.

    where: the file.
    rows: number of first rows to read; by default all. `rows=14400` of ETT's hourly files gives the 12, 4 and 4 months
        of the literature.
    columns: columns to keep: columns=OT keeps one, columns=HUFL+OT two; by default all.
    target: columns to forecast, in the same form, from all columns that are kept; by default all of them.

    Errors: FileNotFoundError if the file is missing. ValueError, in one line, if the file is empty, ragged or cut off,
    or if its columns are not separated by commas. ValueError if a number is missing, not finite, or so large or small
    that its square overflows. ValueError if a named column is missing. ValueError if dates cannot be read, are
    ambiguous between two days, or do not rise from row to row.
    """
    names, numbered = read_table(where)
    numbered = numbered[: _rows(rows, len(numbered))]
    at, body = [number for number, _ in numbered], [row for _, row in numbered]
    # a numeric column may begin with gaps, which are reported later
    first_told = (next((row[n] for row in body if row[n].strip()), "") for n in range(len(names)))
    numeric = [n for n, word in enumerate(first_told) if parse_number(word) is not None]
    chosen_names = {word for option in (columns, target) if option for word in option.split("+")}
    unread = [n for n in range(len(names)) if n not in numeric or names[n] not in chosen_names]
    cells = [
        Column(n, names[n], [row[n] for row in body], n in numeric, leads=n == 0 and len(numeric) > 1) for n in unread
    ]
    dated = dates_of(f"series={where}", cells, at)
    numeric = [n for n in numeric if n not in dated.excluded]
    if not numeric:
        raise ValueError(f"series={where} has no column of numbers; its first row is {','.join(body[0])[:80]}")
    numeric, targets = _choose_columns(names, numeric, columns, target)
    values = numpy.array([[parse_finite(row[n], number, names[n], where) for n in numeric] for number, row in numbered])
    first, second = (round(len(values) * end) for end in ENDS)
    numbers = torch.from_numpy(values)
    its_names = tuple(names[n] for n in numeric)
    by, constant = column_scales(f"series={where}", its_names, numbers[:first])
    whole = standardize(f"series={where}", its_names, numbers, by)
    clock = dated.clock
    dates = torch.zeros(len(body), 0) if clock is None else calendar(clock.dates)
    train, valid, test = (
        SeriesSplit(whole[:last], dates[:last], begin)
        for begin, last in ((0, first), (first, second), (second, len(whole)))
    )
    counts = f"{len(train.rows):,} train, {len(valid.rows):,} valid, {len(test.rows):,} test"
    contents = f"rows of {len(numeric)} numbers{'' if clock is None else ' and their dates'}"
    split = f"series={where}: {contents}, {counts}, by time"
    split += f"; left out: {', '.join(dated.left_out)}" * bool(dated.left_out) + constant_columns(constant, its_names)
    row_numbers = {
        column.name: torch.tensor([float(word) for word in column.words], dtype=torch.float64)
        for column in dated.counters
    }
    return SeriesData(f"series={where}", train, valid, test, its_names, numbers, by, targets, clock, split, row_numbers)


def rows_of(model: Forecaster) -> int:
    """Return the number of rows in a window of the model: its context and its horizon."""
    return model.context + model.horizon


def _rows(option: str, count: int) -> int:
    """Return the number of rows to read."""
    if not option:
        return count
    if not option.isdecimal() or not LEAST <= int(option) <= count:
        raise ValueError(
            f"rows={option} is invalid: the file has {count:,} rows. Give a number from {LEAST} to {count}"
        )
    return int(option)


def _choose_columns(names: Sequence[str], numeric: Sequence[int], columns: str, target: str) -> tuple[list[int], int]:
    """Return the kept columns with the targets last, and the number of targets."""
    chosen = _columns_named("columns", columns, names, numeric)
    last = _columns_named("target", target, names, chosen)
    return [n for n in chosen if n not in last] + last, len(last)


def _columns_named(option: str, option_value: str, names: Sequence[str], numeric: Sequence[int]) -> list[int]:
    """Return the indices of the columns that an option names; all numeric columns if it is empty."""
    if not option_value:
        return list(numeric)
    by_name, words = {names[n]: n for n in numeric}, option_value.split("+")
    for word in words:
        if word not in by_name:
            raise ValueError(
                f"{option}={option_value} names {quote(word)}, which is no column of numbers"
                f"{suggest_names(word, by_name)}"
            )
        if words.count(word) > 1:
            raise ValueError(f"{option}={option_value} names {quote(word)} twice; give each column once")
    return [by_name[word] for word in words]
