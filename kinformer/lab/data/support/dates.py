"""Dates of a series: find the column of dates, parse it, and compute calendar features of each row."""

import re
from calendar import monthrange
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.warn import warn
from kinformer.lab.data.support.date_forms import form_of

DAY, WEEK, FORTNIGHT, WEEKS = (timedelta(days=days) for days in (1, 7, 14, 364))  # WEEKS: 52, about a year
EPOCH = datetime(1970, 1, 1)
NAMES = {"date", "dates", "datetime", "day", "ds", "epoch", "time", "timestamp", "ts", "unix"}  # names of date columns
ROW_NUMBERS = {"", "id", "index", "row", "unnamed"}  # names of columns that count rows, as pandas writes them
REGULAR = 0.9  # minimum share of equal steps in a column of unix times without such a name
WRITTEN = re.compile(
    r"\s*(?P<first>\d{1,4})(?P<sign>[-/.])(?P<second>\d{1,2})(?:(?P=sign)(?P<third>\d{1,4}))?"
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<more>\d{2})(?:\.(?P<fraction>\d{1,6})\d*)?)?"
    r"(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?)?\s*"
)
MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
LIKE_A_DATE = re.compile(rf"\d[-/.]\d{{1,2}}[-/.]\d|\d:\d\d|\b({MONTHS})[a-z]*\b.*\d|\d.*\b({MONTHS})", re.I)
# ranges of unix times by ticks per second: 1973 to 2128
UNIX = {1: (1e8, 5e9), 1e3: (1e11, 5e12), 1e6: (1e14, 5e15), 1e9: (1e17, 5e18)}


class Clock(NamedTuple):
    """The column of dates of a series; its dates increase from row to row.

    name: name of the column.
    dates: the dates of the rows.
    months: the months between two rows if all rows have the same day of the month, or its last day; else 0.
    words: the dates as the file writes them.
    """

    name: str
    dates: tuple[datetime, ...]
    months: int = 0
    words: tuple[str, ...] = ()

    @property
    def step(self) -> timedelta:
        """The most common time between two rows."""
        return Counter(later - before for before, later in pairwise(self.dates)).most_common(1)[0][0]

    @property
    def season(self) -> int | None:
        """Number of rows after which a series usually repeats, by the time between rows; None if unknown.

        Rows within a day repeat after a day: 24 for hours, 96 for quarters of an hour. Days repeat after the days of
        the week that have rows: 7, or 5 for business days. Weeks, months and quarters repeat after a year: 52, 12, 4.
        These are the periods of `freq_to_period` of statsmodels.
        """
        if self.months:
            return _count(12, self.months)
        if self.step == DAY:
            return len(_weekdays(self.dates))
        return _count(WEEKS, self.step) if self.step >= WEEK else _count(DAY, self.step)

    def next_dates(self, count: int) -> tuple[datetime, ...]:
        """Return the dates of the next `count` rows; days of the week without rows are skipped."""
        if self.months:
            last = all(_ends_a_month(date) for date in self.dates)
            return tuple(_months_later(self.dates[-1], n * self.months, last) for n in range(1, count + 1))
        step, days, dates = self.step, _weekdays(self.dates), [self.dates[-1]]
        for _ in range(count):
            dates.append(_next_date(dates[-1], step, days))
        return tuple(dates[1:])

    def words_after(self, count: int) -> tuple[str, ...]:
        """Return the dates of `next_dates` in the format of the file.

        If its rows have no common format, the dates are ISO 8601.
        """
        write = form_of(self.words, self.dates)
        return tuple(map(write, self.next_dates(count)))


class Column(NamedTuple):
    """A column of a series file, as text.

    place: index of the column.
    name: name of the column.
    words: its cells.
    number: True if the cells are numbers.
    leads: True if it is the first column of the file and other columns hold numbers too.
    """

    place: int
    name: str
    words: Sequence[str]
    number: bool
    leads: bool = False

    @property
    def says_date(self) -> bool:
        """True if the name of the column says that it holds dates."""
        return bool(NAMES & set(re.split(r"[^a-z]+", self.name.lower())))


class DateColumns(NamedTuple):
    """The result of `dates_of`: the dates of a file, and the columns that are not forecast.

    clock: the dates; None if no column holds dates.
    excluded: indices of the columns that are not forecast.
    left_out: a note for each omitted column.
    counters: the columns that only number the rows, which are among `excluded`.
    """

    clock: Clock | None
    excluded: Collection[int]
    left_out: tuple[str, ...]
    counters: tuple[Column, ...] = ()


def dates_of(where: str, columns: Sequence[Column], lines: Sequence[int]) -> DateColumns:
    """Find the first column of increasing dates, and the other columns that are not forecast.

    Dates are ISO 8601, with or without a zone; 2020/01/31, 31.01.2020, 01/31/2020 or 31/01/2020, whichever fits the
    whole column; 20200131; 2020-01; and seconds, milliseconds and so on since 1970. Numbers are dates if the name of
    the column says so, or if they rise in equal steps.

    Row numbers are left out. They are a first column of 0, 1, 2, ... or 1, 2, 3, ... beside other numbers. They are
    also a column that rises by 1 in each row and is named index, id or row, or has no name.

    where: name of the data, for errors.
    columns: the columns to search.
    lines: the line of each row, for errors.

    Errors: ValueError, in one line that names the column and the line, for unreadable or ambiguous dates, and if no
    column of dates increases from row to row. Warns of gaps.
    """
    dated_columns: list[tuple[Column, list[datetime]]] = []
    unread: list[str] = []
    for column in columns:
        try:
            read = _parse_numbers(column) if column.number else _parse_words(column, lines)
        except ValueError as error:
            unread.append(str(error))
            continue
        if read is not None:
            dated_columns.append((column, read))
    rising = [pair for pair in dated_columns if _first_fall(pair[1]) is None]
    if unread and not rising:
        raise ValueError(f"{where}: {unread[0]}")
    if dated_columns and not rising:
        _refuse_order(where, *dated_columns[0], lines)
    clock = None if not rising else _clock(where, *rising[0], lines)
    place = None if clock is None else rising[0][0].place
    numbered = [column for column in columns if column.number and _counts_rows(column)]
    dated = [column.place for column, _ in dated_columns]
    left = [f"{column.name} (row numbers)" for column in numbered]
    left += [f"{column.name} (dates)" for column, _ in dated_columns if column.place != place]
    left += [column.name for column in columns if not column.number and column.place not in dated]
    return DateColumns(clock, {*dated, *(column.place for column in numbered)}, tuple(left), tuple(numbered))


def calendar(dates: Sequence[datetime]) -> Float[Tensor, "N 5"]:
    """Return five calendar features of each of `dates`, each from -1/2 to 1/2.

    They are the minute, the hour, the day of the week, the day of the month and the day of the year.
    """
    parts = [
        (at.minute / 59, at.hour / 23, at.weekday() / 6, (at.day - 1) / 30, (at.timetuple().tm_yday - 1) / 365)
        for at in dates
    ]
    return torch.tensor(parts, dtype=torch.float32).view(-1, 5) - 0.5


def is_date(word: str) -> bool:
    """Return whether `word` is a date with year, month and day, or with a time of day."""
    with suppress(ValueError):
        datetime.fromisoformat(word.strip())
        return True
    match = WRITTEN.fullmatch(word)
    return match is not None and (match["third"] or match["hour"]) is not None


# Parsing dates --------------------------------------------------------------------------------------------------------


def _parse_words(column: Column, lines: Sequence[int]) -> list[datetime] | None:
    """Parse a column of text as dates; None if it holds no dates, ValueError for an unreadable date."""
    dates: list[datetime] = []
    with suppress(ValueError):
        dates += [datetime.fromisoformat(word.strip()) for word in column.words]
    if dates:
        return _check_zones(column, dates)
    parts = [WRITTEN.fullmatch(word) for word in column.words]
    if None not in parts:
        return _parse_by_order(column, cast(list[re.Match[str]], parts), lines)
    odd = parts.index(None)
    if odd or column.says_date or LIKE_A_DATE.search(column.words[odd]):
        raise ValueError(_unreadable_message(column, odd, lines))
    return None


def _check_zones(column: Column, dates: list[datetime]) -> list[datetime]:
    if len({date.tzinfo is None for date in dates}) > 1:
        raise ValueError(
            f"the column {column.name} mixes times with and without a zone; write all of them with a zone, or none"
        )
    return dates


def _parse_by_order(column: Column, parts: Sequence[re.Match[str]], lines: Sequence[int]) -> list[datetime]:
    """Parse dates with the year first, or last; the whole column decides whether day or month comes first."""
    if all(len(part["first"]) == 4 for part in parts):
        orders = [("first", "second", "third")]
    else:
        orders = [("third", "second", "first"), ("third", "first", "second")]
        orders = orders[:1] if all(part["sign"] == "." for part in parts) else orders
    readings = [read for order in orders if (read := _parse_in_order(parts, order))]
    if len(readings) > 1 and readings[0] != readings[1]:
        row, day, other = next((n, *pair) for n, pair in enumerate(zip(*readings, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"the dates in the column {column.name} are ambiguous: got {column.words[row]!r}, which can be {day:%B} "
            f"{day.day} or {other:%B} {other.day}. Write dates as 2020-01-31"
        )
    if not readings:
        odd = next(
            (n for n in range(len(parts)) if not any(_parse_in_order(parts[n : n + 1], order) for order in orders)), 0
        )
        raise ValueError(_unreadable_message(column, odd, lines))
    return readings[0]


def _parse_in_order(parts: Sequence[re.Match[str]], order: tuple[str, str, str]) -> list[datetime]:
    """Parse all rows with one order of year, month and day; [] if one of the rows is not a date."""
    try:
        return [_date(part, *(part[name] for name in order)) for part in parts]
    except ValueError:
        return []


def _date(part: re.Match[str], year: str | None, month: str, day: str | None) -> datetime:
    hour, fraction = int(part["hour"] or 0), (part["fraction"] or "").ljust(6, "0")
    if part["half"]:
        hour = hour % 12 + 12 * (part["half"].lower() == "p")
    if year is None or len(year) != 4:
        raise ValueError("no year")
    return datetime(
        int(year), int(month), int(day or 1), hour, int(part["minute"] or 0), int(part["more"] or 0), int(fraction)
    )


def _unreadable_message(column: Column, row: int, lines: Sequence[int]) -> str:
    return (
        f"the column {column.name} has an unreadable date: got {column.words[row]!r} in line {lines[row]:,}, expected "
        "2020-01-31 00:00:00 or seconds since 1970. Write it in one of these forms"
    )


def _parse_numbers(column: Column) -> list[datetime] | None:
    """Parse numbers as dates: 20200131, years, or time since 1970; None for plain numbers."""
    try:
        values = [float(word) for word in column.words]
    except ValueError:
        return None
    low, high, whole = min(values), max(values), all(value % 1 == 0 for value in values)
    if whole and "year" in column.name.lower() and 1000 <= low and high < 3000:
        return [datetime(int(value), 1, 1) for value in values]
    if whole and 1e7 <= low and high < 1e8:
        read = _parse_days(values)
        return read if read and (column.says_date or _first_fall(read) is None) else None
    ticks = next((ticks for ticks, (first, last) in UNIX.items() if first <= low and high <= last), None)
    if ticks is None:
        return None
    read = [EPOCH + timedelta(microseconds=round(value * (1e6 / ticks))) for value in values]
    return read if column.says_date or (_first_fall(read) is None and _commonest_step_share(read) >= REGULAR) else None


def _parse_days(values: Sequence[float]) -> list[datetime]:
    try:
        return [datetime(int(value) // 10_000, int(value) // 100 % 100, int(value) % 100) for value in values]
    except ValueError:
        return []


def _counts_rows(column: Column) -> bool:
    """Return whether a column counts rows: it rises by 1 in each row, and its name or its first value fits.

    A column without a name of row numbers must be the first of several numeric columns, and begin with 0 or 1.
    """
    named = set(re.split(r"[^a-z]+", column.name.lower())) <= ROW_NUMBERS
    if not named and not column.leads:
        return False
    try:
        values = [float(word) for word in column.words]
    except ValueError:
        return False
    return (named or values[0] in (0, 1)) and all(later - before == 1 for before, later in pairwise(values))


# Order of dates -------------------------------------------------------------------------------------------------------


def _first_fall(dates: Sequence[datetime]) -> int | None:
    """Return the first row with a date that is not later than the previous one; None if all dates increase."""
    return next((n for n, (before, later) in enumerate(pairwise(dates), 1) if later <= before), None)


def _commonest_step_share(dates: Sequence[datetime]) -> float:
    """Return the fraction of steps between rows that equal the most common step."""
    steps = Counter(later - before for before, later in pairwise(dates))
    return steps.most_common(1)[0][1] / steps.total()


def _refuse_order(where: str, column: Column, dates: Sequence[datetime], lines: Sequence[int]) -> None:
    row = cast(int, _first_fall(dates))
    raise ValueError(
        f"{where}: the times in the column {column.name} do not increase: got {column.words[row].strip()} in line "
        f"{lines[row]:,} after {column.words[row - 1].strip()}, expected a later time. Write one row for each time, "
        "the earliest first, with date and time in one column"
    )


def _clock(where: str, column: Column, dates: list[datetime], lines: Sequence[int]) -> Clock:
    """Return the clock of increasing dates; warn of irregular steps between rows.

    Days of the week without any row, such as weekends of business days, are not gaps.
    """
    monthly = _of_a_month(dates)
    numbers: list[Any] = [date.year * 12 + date.month if monthly else date for date in dates]
    steps = [later - before for before, later in pairwise(numbers)]
    usual = Counter(steps).most_common(1)[0][0]
    days = set() if monthly else _weekdays(dates)
    odd_rows = [
        n
        for n, step in enumerate(steps, 1)
        if step != usual and (monthly or _next_date(dates[n - 1], usual, days) != dates[n])
    ]
    if odd_rows:
        row = odd_rows[0]
        gap, usual_gap = (f"{step} months" if monthly else str(step) for step in (steps[row - 1], usual))
        word, odd = column.words[row].strip(), f"{len(odd_rows):,} of {len(steps):,}"
        warn(
            f"{where}: the rows are not evenly spaced: {word} in line {lines[row]:,} comes {gap} after the row above, "
            f"but most rows come {usual_gap} apart ({odd} do not). They are treated as evenly spaced"
        )
    return Clock(column.name, tuple(dates), usual if monthly else 0, tuple(column.words))


def _count(whole: Any, step: Any) -> int | None:
    """Return the number of steps in a whole; None if it is no integer above 1."""
    count = whole // step
    return count if count > 1 and count * step == whole else None


def _weekdays(dates: Sequence[datetime]) -> set[int]:
    """Return the days of the week that have rows; all 7 days if the rows span less than two weeks."""
    return {date.weekday() for date in dates} if dates[-1] - dates[0] >= FORTNIGHT else set(range(7))


def _next_date(date: datetime, step: timedelta, weekdays: Collection[int]) -> datetime:
    """Add steps to a date until it falls on one of these days of the week."""
    date += step
    while date.weekday() not in weekdays:
        date += step
    return date


def _of_a_month(dates: Sequence[datetime]) -> bool:
    """True if all dates have the same time and the same day of the month, or all are the last day of a month."""
    days = {date.day for date in dates}
    return len({date.timetz() for date in dates}) == 1 and (len(days) == 1 or all(map(_ends_a_month, dates)))


def _ends_a_month(date: datetime) -> bool:
    return date.day == monthrange(date.year, date.month)[1]


def _months_later(date: datetime, months: int, last: bool) -> datetime:
    year, month = divmod(date.year * 12 + date.month - 1 + months, 12)
    last_day = monthrange(year, month + 1)[1]
    return date.replace(year=year, month=month + 1, day=last_day if last else min(date.day, last_day))
