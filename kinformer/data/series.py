"""Series of numbers: a file of columns, one row a time, such as measurements by the hour.

Choose `series=FILE.csv` for what forecasts. A batch is `Windows`: rows that follow one another, each column by its mean
and deviation in train, and when they were, where a column holds dates.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.batch import Windows
from kinformer.core.model import Forecaster, Model
from kinformer.data.batches import Batches
from kinformer.data.files import found
from kinformer.data.kind import Data
from kinformer.data.support.baselines import least_squares, seasonal
from kinformer.data.support.unpacked import lines

FORM, SERVES = "series=FILE.csv", ("series",)
ENDS = 0.6, 0.8  # where train and valid end: 12, 4 and 4 months of 20, as ETT is split
MEASURED = 64  # windows of a batch that is measured
DAY = timedelta(days=1)


class Stretch(NamedTuple):
    """Rows up to where a split ends; those before `first` are of the splits before it, and known when it begins."""

    values: Float[Tensor, "N C"]
    calendar: Float[Tensor, "N F"]
    first: int

    @property
    def rows(self) -> Float[Tensor, "R C"]:
        """Its own rows."""
        return self.values[self.first :]

    def starts(self, context: int, length: int) -> range:
        """Where windows of `length` rows begin of which all but the first `context` are its own."""
        return range(max(0, self.first - context), len(self.values) - length + 1)

    def windows(self, starts: Int[Tensor, " W"], length: int) -> Windows:
        """The windows that begin there."""
        at = starts[:, None] + torch.arange(length)
        return Windows(self.values[at], self.calendar[at])


@dataclass(frozen=True, eq=False)
class Series(Data):
    """Three stretches of time that follow one another.

    `columns` names the numbers of a row, `day` is how many rows a day has, 1 where no column holds dates.
    """

    what: ClassVar[str] = "a series"
    serves: ClassVar[tuple[str, ...]] = SERVES
    name: str
    train: Stretch
    valid: Stretch
    test: Stretch
    columns: tuple[str, ...]
    day: int = 1
    split: str = ""

    @property
    def keywords(self) -> dict[str, Any]:
        return {"channels": len(self.columns), "calendar": self.train.calendar.shape[1]}

    def longest(self, length: int) -> None:
        return None

    def measured(self, length: int, limit: int) -> str:
        return f"up to {self._most(length, limit):,} windows of valid"

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Windows drawn by seed and step; of valid every window, or as many from all over it as the limit allows.

        A model that forecasts says how long they are (`context` and `horizon`), whatever `length` is: what it forecasts
        lies in valid, what it knows may lie before. ValueError where train or valid is shorter than a window, and for a
        model of other columns.
        """
        context, rows = (model.context, model.context + model.horizon) if isinstance(model, Forecaster) else (0, length)
        for name, number in self.keywords.items():
            if (wanted := getattr(model, name, number)) != number:
                raise ValueError(f"{self.name} has {name}={number}, and this model has {wanted}; give {name}={number}")
        for name in ("train", "valid"):
            if not len((held := getattr(self, name)).starts(context, rows)):
                raise ValueError(
                    f"{self.name} has {len(held.rows):,} rows in {name}, and a window has {rows:,}; give less"
                )
        drawn = self.train.starts(context, rows)

        def at(step: int) -> Windows:
            some = numpy.random.default_rng((seed, step)).integers(drawn.start, drawn.stop, size=batch)
            return self.train.windows(torch.from_numpy(some), rows)

        watched = self._some(self.valid, context, rows, self._most(length, limit))
        return Batches(at, [self.valid.windows(one, rows) for one in watched.split(MEASURED)])

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """The mean squared errors of plain forecasts of the same windows.

        A linear map of the known rows, fitted by least squares on all windows of train, and the last day again and
        again, or the last row where the file has no dates or a row for each day.
        """
        if not isinstance(model, Forecaster):
            return {}
        context, rows = model.context, model.context + model.horizon
        held = getattr(self, split)
        some = self._some(held, context, rows, self._most(length, limit))
        known, wanted = held.windows(some, rows).values.split([context, model.horizon], 1)
        learned = self.train.windows(torch.tensor(self.train.starts(context, rows)), rows).values
        said = {"least squares": least_squares(learned, context)(known)}
        if self.day <= context:
            said["last row" if self.day == 1 else "seasonal naive"] = seasonal(known, model.horizon, self.day)
        return {name: float((one - wanted).square().double().mean()) for name, one in said.items()}

    def _some(self, held: Stretch, context: int, rows: int, most: int) -> Int[Tensor, " W"]:
        """Where windows of a split begin: all, or so many from all over it."""
        there = torch.tensor(held.starts(context, rows))
        count = min(len(there), most)
        return there[torch.arange(count) * (len(there) - 1) // max(count - 1, 1)]

    def _most(self, length: int, limit: int) -> int:
        return max(1, limit // max(length, 1))


def read(where: str, rows: str = "") -> Series:
    """The columns of numbers of a file, packed or not, and the calendar of its column of dates.

    Dates are written as 2016-07-01 00:00:00; columns of other words are left out. Split by time: the first 60% are
    learned from, the next 20% watched, the last kept for the end. Numbers are taken by their mean and deviation in
    train, so nothing of what comes later is known. `rows` reads the first ones alone: of ETT's hours `rows=14400` are
    the 12, 4 and 4 months of the literature.

    Errors: FileNotFoundError for what is not there; ValueError, in one line, for what is empty, ragged or cut off, and
    where a number is missing or not finite.
    """
    path = found(where, f"there is no file {where}; write series=FILE.csv")
    try:
        table = [row for row in csv.reader(line.decode() for line in lines(path)) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"series={where} is no file of columns: {error}") from error
    if len(table) < 6:
        raise ValueError(f"series={where} has {len(table)} lines; a line of names and five of numbers are the least")
    names, *body = table
    for number, row in enumerate(body, 2):
        if len(row) != len(names):
            came = "1 column" if len(row) == 1 else f"{len(row)} columns"
            raise ValueError(f"line {number:,} of series={where} has {came} where {len(names)} are wanted")
    body = body[: _rows(rows, len(body))]
    kept = [n for n in range(len(names)) if _number(body[0][n]) is not None]
    if not kept:
        raise ValueError(f"series={where} has no column of numbers; its first row is {','.join(body[0])[:80]}")
    values = numpy.array(
        [[_finite(row[n], number, names[n], where) for n in kept] for number, row in enumerate(body, 2)]
    )
    first, second = (round(len(values) * end) for end in ENDS)
    mean, deviation = values[:first].mean(0), values[:first].std(0)
    whole = torch.from_numpy(((values - mean) / numpy.where(deviation > 0, deviation, 1.0)).astype(numpy.float32))
    dates = _dates(body)
    calendar = _calendar(dates, len(body))
    train, valid, test = (
        Stretch(whole[:last], calendar[:last], begin)
        for begin, last in ((0, first), (first, second), (second, len(whole)))
    )
    counts = f"{len(train.rows):,} train, {len(valid.rows):,} valid, {len(test.rows):,} test"
    told = f"series={where}: rows of {len(kept)} numbers{' and their dates' if dates else ''}, {counts}, by time"
    day = max(1, round(DAY / (dates[1] - dates[0]))) if dates and dates[1] > dates[0] else 1
    return Series(f"series={where}", train, valid, test, tuple(names[n] for n in kept), day, told)


def _rows(given: str, there: int) -> int:
    if not given:
        return there
    if not given.isdecimal() or not 5 <= int(given) <= there:
        raise ValueError(f"rows={given} are none of its {there:,} rows; give 5 to {there}")
    return int(given)


def _dates(body: list[list[str]]) -> list[datetime]:
    """The first column that holds nothing but dates; none where there is no such column."""
    for n, text in enumerate(body[0]):
        if _number(text) is None:
            try:
                return [datetime.fromisoformat(row[n]) for row in body]
            except ValueError:
                continue
    return []


def _calendar(dates: list[datetime], rows: int) -> Float[Tensor, "N F"]:
    """The minute, hour, day of the week, of the month and of the year of each row, from -1/2 to 1/2."""
    parts = [
        (at.minute / 59, at.hour / 23, at.weekday() / 6, (at.day - 1) / 30, (at.timetuple().tm_yday - 1) / 365)
        for at in dates
    ]
    return torch.tensor(parts) - 0.5 if parts else torch.zeros(rows, 0)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _finite(text: str, line: int, column: str, where: str) -> float:
    found = _number(text)
    if found is None or not math.isfinite(found):
        raise ValueError(f"line {line:,} of series={where} has {text!r} in the column {column}; a number is wanted")
    return found
