"""Series of numbers: a file of columns, one row a time, such as measurements by the hour.

Choose `series=FILE.csv` for a model that forecasts. A batch is `SeriesWindows`: consecutive rows, each column
standardized by its mean and deviation in train, with the dates of the rows if a column holds dates. A model keeps the
names, means and deviations of its training columns. Later files are standardized by these.
"""

import csv
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.checkpoint.atomic_files import existing_path
from kinformer.checkpoint.decompress import lines
from kinformer.core.batch import SeriesWindows
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.model import ColumnScales, Forecaster, Model, display_name
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.support.dates import Clock, Column, calendar, dates_of, is_date
from kinformer.lab.data.support.forecast_baselines import least_squares, seasonal_naive
from kinformer.lab.data.support.safe_scales import constant_columns
from kinformer.lab.data.support.series_windows import SeriesSplit
from kinformer.lab.data.support.standardized_columns import column_scales, standardize

FORM, SERVES = "series=FILE.csv", ("series",)
ENDS = 0.6, 0.8  # where train and valid end: 12, 4 and 4 months of 20, as ETT is split
LEAST = 2  # rows of a file: a single date tells no step to the next row
SEPARATORS = {";": "semicolons (;)", "\t": "tabs", "|": "bars (|)"}  # of columns, which are refused
MEASURED, LEARNED = 64, 512  # windows of a batch that is measured, and of one that a linear map learns from


@dataclass(frozen=True, eq=False)
class SeriesData(Data):
    """Three stretches of time that follow one another.

    `columns` names the numbers of a row, and the last `targets` of them are forecast. `numbers` are all rows in the
    units of the file. `clock` holds the dates of the rows if a column has them. `scale` is the mean and deviation that
    standardize the three stretches: those of train, or those that a model kept (`for_model`). `row_numbers` are the
    columns of row numbers, by name: only a model that learned from a column of that name reads them.
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
        """The rows of a season, by the time between rows; None without dates, or if that time names no season."""
        return None if self.clock is None else self.clock.season

    @property
    def keywords(self) -> dict[str, Any]:
        return {"channels": len(self.columns), "targets": self.targets, "calendar": self.train.calendar.shape[1]}

    def longest_length(self, length: int) -> None:
        return None

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"up to {self._sample_size(length, limit):,} windows of {split}"

    def store_scales(self, model: Model) -> None:
        """Store the names and scales of these columns in a model that has none."""
        if model.columns is None:
            mean, deviation = self.scale.tolist()
            model.columns = ColumnScales(self.columns, tuple(mean), tuple(deviation))

    def for_model(self, model: Model) -> "SeriesData":
        """This series with the model's columns, selected by name, in the model's order and with the model's scale.

        Columns that the model does not know are left out. Row numbers are read if the model learned from a column of
        that name. A model without stored columns, such as an untrained one,
        takes the columns in the order of the file, with the scale of the file.

        Errors: ValueError, in one line, for a column that is missing or occurs twice, and for other targets.
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
        """`for_model`; warns if the model has no stored columns, and refuses other sizes than those of the model."""
        if model.columns is None and not model.training:
            warnings.warn(
                f"this {display_name(model)} kept no names and scales of columns, as runs of earlier versions: "
                f"{self.name} is read in the order of its columns, by the mean and deviation of its own first 60%",
                stacklevel=4,
            )
        series = self.for_model(model)
        for name, number in series.keywords.items():
            if (expected := getattr(model, name, number)) != number:
                left = ", ".join(map(repr, self.row_numbers)) if name == "channels" else ""
                counted = f", or columns= with the row numbers {left} too" if left else ""
                raise ValueError(
                    f"{self.name} has {name}={number}, and this model has {expected}; give {name}={number}{counted}"
                )
        return series

    def _column_indices(self, columns: Sequence[str], names: Sequence[str], member: str) -> list[int]:
        """The indices of the named columns among these; ValueError for a name that is missing or occurs twice."""
        missing = [name for name in names if columns.count(name) == 0]
        if missing:
            raise ValueError(
                f"{self.name} lacks columns of numbers that this {member} learned from: got "
                f"{', '.join(columns):.150}, expected {', '.join(missing):.150} too. "
                "Give a file, and columns=, with the names of the training."
            )
        twice = [name for name in names if columns.count(name) > 1 or names.count(name) > 1]
        if twice:
            raise ValueError(
                f"{self.name} cannot be read by names: got several columns {twice[0]!r}, expected one. "
                "Give them the order of the training."
            )
        return [columns.index(name) for name in names]

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Windows drawn by seed and step; of valid every window, or as many from all over it as the limit allows.

        A model that forecasts says how long they are (`context` and `horizon`), whatever `length` is: what it forecasts
        lies in valid, what it knows may lie before. ValueError where train or valid is shorter than a window, and for a
        model of other columns.
        """
        series = self.check_for_model(model)
        context, rows = (model.context, rows_of(model)) if isinstance(model, Forecaster) else (0, length)
        # evaluate puts the split that it measures in the place of valid
        for name, stretch in (("train", series.train), ("test" if self.valid is self.test else "valid", series.valid)):
            stretch.check_holds(f"{name} of {self.name}", context, rows)
        begins = series.train.window_starts(context, rows)

        def draw_batch(step: int) -> SeriesWindows:
            starts = numpy.random.default_rng((seed, step)).integers(begins.start, begins.stop, size=batch)
            return series.train.windows(torch.from_numpy(starts), rows)

        watched = series.valid.sample_starts(context, rows, self._sample_size(length, limit))
        return Batches(draw_batch, [series.valid.windows(lot, rows) for lot in watched.split(MEASURED)])

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """The mean squared errors of plain forecasts of the same windows.

        A linear map of the known rows of a target, fitted by least squares on all windows of train; the last row,
        repeated; and the last season, repeated, if the dates name a season that is no longer than the context.
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
        """Forecasts of the targets that need no model, by name, the linear one first."""
        context = context[..., -self.targets :]
        starts, rows = torch.tensor(self.train.window_starts(model.context, rows_of(model))), rows_of(model)
        learned = (self.train.windows(lot, rows).values[..., -self.targets :] for lot in starts.split(LEARNED))
        forecasts = {"least squares": least_squares(learned, model.context)(context)}
        forecasts["last row"] = seasonal_naive(context, model.horizon, 1)
        if self.season is not None and self.season <= model.context:
            forecasts["seasonal naive"] = seasonal_naive(context, model.horizon, self.season)
        return forecasts

    def future_window(self, model: Forecaster) -> SeriesWindows:
        """The window whose known rows are the last of all, and whose others are still to come: zeros.

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
        """Numbers of the last columns, as many as there are, as the file has them."""
        mean, deviation = self.scale[:, -values.shape[-1] :]
        return values.double() * deviation + mean

    def _sample_size(self, length: int, limit: int) -> int:
        return max(1, limit // max(length, 1))


@named
def read(where: str, rows: str = "", columns: str = "", target: str = "") -> SeriesData:
    """The columns of numbers of a file, packed or not, and the calendar of its column of dates.

    Dates are written as 2016-07-01 00:00:00, as 2016/07/01, 01.07.2016 or 07/31/2016, as 20160701, or in seconds or
    milliseconds since 1970; rows must come in their order, and gaps are warned of. Columns of other words and row
    numbers are left out, and the line about the split names them. Row numbers are a first column of 0, 1, 2, ... or
    1, 2, 3, ..., and a column index, id or row, or without a name, that rises by 1; `columns` keeps them. A model that
    learned from such a column reads it. Split by time: the first 60% are learned from, the next 20% watched, the last
    kept for the end. Numbers are taken by their mean and deviation in train, so later rows do not leak; a model keeps
    these for its later files. A column that is constant in train, but for rounding, is not divided by its deviation;
    the line about the split names it.
    `rows` reads the first ones alone: of ETT's hours `rows=14400` are the 12, 4 and 4 months of the literature.
    `columns` keeps some: columns=OT is one column from itself, columns=HUFL+OT two. `target`, likewise, names those
    that are forecast, from all that are kept; all of them unless given.

    Columns are separated by commas.

    Errors: FileNotFoundError for what is not there; ValueError, in one line, for what is empty, ragged or cut off, for
    columns that other signs than commas separate, where a number is missing, not finite, or so large or small that its
    square overflows, for columns that are not there, and for dates that cannot be read, may be of two days, or do not
    rise from row to row.
    """
    path = existing_path(where, "write series=FILE.csv")
    try:
        reader = csv.reader(line.decode() for line in lines(path))
        table = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"series={where} is no file of columns: {error}") from error
    if len(table) <= LEAST:
        raise ValueError(
            f"series={where} is too short: got {len(table)} lines, expected a line of names and at least {LEAST} rows. "
            "Give more rows."
        )
    (line, names), *numbered = table
    _check_separator(f"series={where}", line, names, numbered[0][1])
    _check_names(f"series={where}", line, names)
    for number, row in numbered:
        if len(row) != len(names):
            width = "1 column" if len(row) == 1 else f"{len(row)} columns"
            raise ValueError(
                f"line {number:,} of series={where} has {width}, and its first line names {len(names)}; write a line "
                "of names such as date,load,oil, and below it a row for each time with as many columns"
            )
    numbered = numbered[: _rows(rows, len(numbered))]
    at, body = [number for number, _ in numbered], [row for _, row in numbered]
    # a column of numbers may begin with gaps, which are told of
    first_told = (next((row[n] for row in body if row[n].strip()), "") for n in range(len(names)))
    numeric = [n for n, word in enumerate(first_told) if _parse_number(word) is not None]
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
    values = numpy.array(
        [[_parse_finite(row[n], number, names[n], where) for n in numeric] for number, row in numbered]
    )
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
    """The rows of its windows."""
    return model.context + model.horizon


def _check_separator(where: str, line: int, names: Sequence[str], row: Sequence[str]) -> None:
    """Refuse a file whose columns are separated by other signs than commas, such as the semicolons of spreadsheets."""
    for sign, name in SEPARATORS.items():
        cells, signs = [cell.split(sign) for cell in row if sign in cell], ",".join(names).count(sign)
        # commas in a name and in decimals make columns too: "temp,C;walk" over "1,5;3" has a cell of 5 and 3
        if signs and cells and (signs >= len(names) or any(all(map(_is_data, parts)) for parts in cells)):
            raise ValueError(
                f"{where} cannot be read: got columns that {name} separate in line {line}, expected commas. Save the "
                "file with commas between columns, and with points in its numbers."
            )


def _check_names(where: str, line: int, names: Sequence[str]) -> None:
    """Refuse a first line that is a row of data; warn of numbered columns (0,1,2), which may be data too."""
    # pandas leaves the name of its index blank
    if not names[0].strip() or not all(map(_is_data, names)):
        return
    if [name.strip() for name in names] in ([str(n + first) for n in range(len(names))] for first in (0, 1)):
        warnings.warn(
            f"{where} begins with {','.join(names):.80}, which is read as the names of columns; if it is a row of "
            "data, write a line of names above it",
            stacklevel=4,
        )
        return
    raise ValueError(
        f"{where} has no names of columns: got the numbers {','.join(names):.80} in line {line}, expected names such "
        "as date,load,oil. Write a line of names above the first row."
    )


def _is_data(cell: str) -> bool:
    """True for a number, a date or an empty cell, False for a name."""
    return not cell.strip() or _parse_number(cell) is not None or is_date(cell)


def _rows(option: str, count: int) -> int:
    if not option:
        return count
    if not option.isdecimal() or not LEAST <= int(option) <= count:
        raise ValueError(f"rows={option} are none of its {count:,} rows; give {LEAST} to {count}")
    return int(option)


def _choose_columns(names: Sequence[str], numeric: Sequence[int], columns: str, target: str) -> tuple[list[int], int]:
    """The columns that are kept, those that are forecast last, and how many these are."""
    chosen = _columns_named("columns", columns, names, numeric)
    last = _columns_named("target", target, names, chosen)
    return [n for n in chosen if n not in last] + last, len(last)


def _columns_named(option: str, option_value: str, names: Sequence[str], numeric: Sequence[int]) -> list[int]:
    if not option_value:
        return list(numeric)
    by_name, words = {names[n]: n for n in numeric}, option_value.split("+")
    for word in words:
        if word not in by_name:
            raise ValueError(
                f"{option}={option_value} names {word!r}, which is no column of numbers{suggest_names(word, by_name)}"
            )
        if words.count(word) > 1:
            raise ValueError(f"{option}={option_value} names {word!r} twice; give each column once")
    return [by_name[word] for word in words]


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_finite(text: str, line: int, column: str, where: str) -> float:
    number = _parse_number(text)
    if number is None or not math.isfinite(number):
        raise ValueError(f"line {line:,} of series={where} has {text!r} in the column {column}; a number is wanted")
    return number
