"""Dates of a series: however they are written they are dates, in order, and forecasts come after the last of them."""

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy
import pytest

from kinformer.lab.data.series import SeriesData
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.dates import calendar

BEGIN, EPOCH = datetime(2019, 12, 30), datetime(1970, 1, 1)
HOURS = [BEGIN + n * timedelta(hours=1) for n in range(60)]
DAYS = [BEGIN + n * timedelta(days=1) for n in range(60)]
MONTHS = [datetime(2019 + n // 12, n % 12 + 1, 1) for n in range(60)]
ENDS = [datetime(2019 + (n + 1) // 12, (n + 1) % 12 + 1, 1) - timedelta(days=1) for n in range(60)]
FORMS: dict[str, tuple[list[datetime], Callable[[datetime], str]]] = {
    "ISO": (HOURS, str),
    "ISO with a T": (HOURS, datetime.isoformat),
    "ISO to the minute": (HOURS, lambda at: f"{at:%Y-%m-%d %H:%M}"),
    "ISO in UTC": (HOURS, lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}"),
    "ISO with a zone": (HOURS, lambda at: f"{at:%Y-%m-%dT%H:%M:%S+02:00}"),
    "year first": (HOURS, lambda at: f"{at:%Y/%m/%d %H:%M}"),
    "year first, short": (HOURS, lambda at: f"{at.year}/{at.month}/{at.day} {at.hour}:00"),
    "of the US": (DAYS, lambda at: f"{at:%m/%d/%Y}"),
    "of the US, with times": (HOURS, lambda at: f"{at:%m/%d/%Y %I:%M %p}"),
    "of Britain": (DAYS, lambda at: f"{at:%d/%m/%Y}"),
    "of Germany": (MONTHS, lambda at: f"{at:%d.%m.%Y}"),
    "months": (MONTHS, lambda at: f"{at:%Y-%m}"),
    "ends of months": (ENDS, lambda at: f"{at:%Y-%m-%d}"),
    "a number of a day": (DAYS, lambda at: f"{at:%Y%m%d}"),
    "unix seconds": (HOURS, lambda at: str(int((at - EPOCH).total_seconds()))),
    "unix seconds and parts": (HOURS, lambda at: f"{(at - EPOCH).total_seconds():.1f}"),
    "unix milliseconds": (HOURS, lambda at: str(int((at - EPOCH).total_seconds()) * 1000)),
    "unix nanoseconds": (HOURS, lambda at: str(int((at - EPOCH).total_seconds()) * 10**9)),
}


def written(folder: Path, words: list[str], name: str = "date", options: str = "") -> tuple[SeriesData, list[str]]:
    """A series with a column of such words before one of numbers, and what was warned of."""
    rows = "".join(f"{word},{n % 7}.5\n" for n, word in enumerate(words))
    (folder / "a.csv").write_text(f"{name},x\n{rows}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        series = read_spec(f"series={folder}/a.csv{options}")
    assert isinstance(series, SeriesData)
    return series, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", ["date", "stamp"])
@pytest.mark.parametrize("form", FORMS)
def test_dates_are_read_however_they_are_written(form: str, name: str, tmp_path: Path) -> None:
    dates, write = FORMS[form]
    series, messages = written(tmp_path, list(map(write, dates)), name)
    assert series.columns == ("x",) and not messages and series.clock is not None and series.clock.name == name
    assert [at.replace(tzinfo=None) for at in series.clock.dates] == dates
    assert series.test.calendar.tolist() == calendar(dates).tolist()
    step = {id(HOURS): timedelta(hours=1), id(DAYS): timedelta(days=1)}.get(id(dates))
    if step is not None:
        expected = [dates[-1] + step, dates[-1] + 2 * step]
    else:
        expected = (
            [datetime(2024, 1, 1), datetime(2024, 2, 1)]
            if dates is MONTHS
            else [datetime(2024, 1, 31), datetime(2024, 2, 29)]
        )
    assert [at.replace(tzinfo=None) for at in series.clock.next_dates(2)] == expected
    assert list(series.clock.words_after(2)) == list(map(write, expected))
    assert series.season == {id(HOURS): 24, id(DAYS): 7}.get(id(dates), 12)


@pytest.mark.parametrize("hours", [24, 6])
def test_business_days_step_over_weekends_and_weekends_are_no_gaps(hours: int, tmp_path: Path) -> None:
    """The dates to come are the next times at equal steps that numpy calls business days."""
    every = [datetime(2024, 3, 4) + n * timedelta(hours=hours) for n in range(40 * 24 // hours)]
    business = [at for at in every if numpy.is_busday(at.date())]
    monday = datetime(2024, 4, 8)
    rows, coming = [at for at in business if at < monday], [at for at in business if at >= monday][:5]
    series, messages = written(tmp_path, list(map(str, rows)))
    assert series.clock is not None and not messages and series.clock.next_dates(5) == tuple(coming)
    # a holiday stays a gap, and a file of less than two weeks says nothing of weekends
    series, messages = written(
        tmp_path, list(map(str, [at for at in rows if at.date() != monday.date() - timedelta(days=12)]))
    )
    assert len(messages) == 1 and "2024-03-28 00:00:00 in line" in messages[0]
    week = [at for at in business if at < datetime(2024, 3, 9)]
    series, _ = written(tmp_path, list(map(str, week)))
    assert series.clock is not None and series.clock.next_dates(1) == (week[-1] + timedelta(hours=hours),)


def test_dates_in_a_form_of_their_own_are_followed_by_iso_dates(tmp_path: Path) -> None:
    words = [str(at.date()) if not at.hour else str(at) for at in HOURS]
    series, _ = written(tmp_path, words)
    assert series.clock is not None and series.clock.words_after(1) == (str(HOURS[-1] + timedelta(hours=1)),)


def test_years_are_dates(tmp_path: Path) -> None:
    series, messages = written(tmp_path, [str(1960 + n) for n in range(60)], "Year")
    assert series.clock is not None and series.clock.next_dates(1) == (datetime(2020, 1, 1),) and not messages
    assert series.clock.words_after(1) == ("2020",)


def test_zones_may_change_where_clocks_do(tmp_path: Path) -> None:
    summer, winter = timezone(timedelta(hours=2)), timezone(timedelta(hours=1))
    at = [datetime(2020, 10, 24, 20, tzinfo=UTC) + n * timedelta(hours=1) for n in range(20)]
    words = [
        moment.astimezone(summer if moment < datetime(2020, 10, 25, 1, tzinfo=UTC) else winter).isoformat()
        for moment in at
    ]
    series, messages = written(tmp_path, words)
    assert series.clock is not None and not messages and series.clock.next_dates(1)[0] == at[-1] + timedelta(hours=1)


def months(step: int) -> list[datetime]:
    return [datetime(2000 + n * step // 12, n * step % 12 + 1, 1) for n in range(60)]


def steps(**step: float) -> list[datetime]:
    return [BEGIN + n * timedelta(**step) for n in range(60)]


SEASONS: dict[str, tuple[list[datetime], int | None]] = {
    "seconds": (steps(seconds=1), 86_400),
    "minutes": (steps(minutes=1), 1_440),
    "quarters of an hour": (steps(minutes=15), 96),
    "hours": (HOURS, 24),
    "parts of a day": (steps(hours=6), 4),
    "half days": (steps(hours=12), 2),
    "business hours": ([at for at in steps(hours=12) if numpy.is_busday(at.date())], 2),
    "days": (DAYS, 7),
    "business days": ([at for at in DAYS if numpy.is_busday(at.date())], 5),
    "all days but Sundays": ([at for at in DAYS if at.weekday() != 6], 6),
    "weeks": (steps(days=7), 52),
    "fortnights": (steps(days=14), 26),
    "months": (MONTHS, 12),
    "ends of months": (ENDS, 12),
    "quarters": (months(3), 4),
    "half years": (months(6), 2),
    "years": (months(12), None),
    "5 months": (months(5), None),
    "5 hours": (steps(hours=5), None),
    "18 hours": (steps(hours=18), None),
    "2 days": (steps(days=2), None),
    "10 days": (steps(days=10), None),
    "5 weeks": (steps(days=35), None),
}


@pytest.mark.parametrize("spacing", SEASONS)
def test_the_season_follows_from_the_time_between_rows(spacing: str, tmp_path: Path) -> None:
    dates, season = SEASONS[spacing]
    series, _ = written(tmp_path, list(map(str, dates)))
    assert series.season == season


WRONG: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "descending": (lambda words: words[::-1], "got 2020-01-01 10:00:00 in line 3 after 2020-01-01 11:00:00, expected"),
    "shuffled": (lambda words: [*words[:9], words[12], *words[9:12], *words[13:]], "got .* in line 12 after .* 10:00"),
    "twice": (lambda words: [*words[:20], *words[19:]], "17:00:00 in line 22 after .* 17:00:00, expected"),
    "a word": (lambda words: [*words[:5], "noon", *words[6:]], "unreadable date: got 'noon' in line 7, expected"),
    "missing": (lambda words: [*words[:5], "", *words[6:]], "unreadable date: got '' in line 7, expected"),
    "no such day": (lambda words: [*words[:5], "2020-02-30", *words[6:]], "got '2020-02-30' in line 7"),
    "a zone": (lambda words: [f"{words[0]}Z", *words[1:]], "mixes times with and without a zone"),
    "in words": (lambda words: [f"{n} January 2020" for n in range(1, 20)], "got '1 January 2020' in line 2"),
    "two digits": (lambda words: [f"1/{n}/20" for n in range(1, 20)], "got '1/1/20' in line 2"),
    "times alone": (lambda words: [f"{n % 24}:00" for n in range(30)], "got '0:00' in line 2"),
    "of two days": (lambda words: [f"{n:02}/01/2020" for n in range(1, 13)], "'02/01/2020', which can be January 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_dates_that_do_not_rise_or_cannot_be_read_are_one_line(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    words = [str(BEGIN + timedelta(hours=22 + n)) for n in range(38)]
    with pytest.raises(ValueError, match=f"series=.* the column date .*{message}") as caught:
        written(tmp_path, change(words))
    assert "\n" not in str(caught.value)


def test_ambiguous_days_say_both(tmp_path: Path) -> None:
    words = [f"{n:02}/02/2020" for n in range(1, 13)]
    with pytest.raises(ValueError, match="got '01/02/2020', which can be February 1 or January 2. Write dates as"):
        written(tmp_path, words)
    series, _ = written(tmp_path, [*words, "13/02/2020"])
    assert series.clock is not None and series.clock.next_dates(1) == (datetime(2020, 2, 14),)


def test_a_first_step_that_is_off_sets_no_other(tmp_path: Path) -> None:
    dates = [HOURS[0] + timedelta(minutes=1), *HOURS[1:]]
    series, (message,) = written(tmp_path, list(map(str, dates)))
    assert series.clock is not None and series.season == 24
    assert series.clock.next_dates(2) == (HOURS[-1] + timedelta(hours=1), HOURS[-1] + timedelta(hours=2))
    assert "line 3 comes 0:59:00 after the row above, but most rows come 1:00:00 apart (1 of 59 do not)" in message


@pytest.mark.parametrize(("dates", "gap", "usual"), [(HOURS, "4:00:00", "1:00:00"), (MONTHS, "4 months", "1 months")])
def test_gaps_are_said_with_the_first_line(dates: list[datetime], gap: str, usual: str, tmp_path: Path) -> None:
    series, (message,) = written(tmp_path, list(map(str, [*dates[:30], *dates[33:40], *dates[41:]])))
    assert f"line 32 comes {gap} after the row above, but most rows come {usual} apart (2 of 55 do not)" in message
    assert series.clock is not None and "\n" not in message
    assert series.clock.next_dates(1) == ((HOURS[-1] + timedelta(hours=1) if dates is HOURS else datetime(2024, 1, 1)),)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "id"])
def test_row_numbers_are_no_target(name: str, tmp_path: Path) -> None:
    series, _ = written(tmp_path, [str(n) for n in range(30)], name)
    assert series.columns == ("x",) and series.clock is None and f"; left out: {name} (row numbers)" in series.split
    other, _ = written(tmp_path, [str(n * n) for n in range(30)], name)
    assert other.columns == (name, "x")


@pytest.mark.parametrize("begin", [0, 1])
def test_a_first_column_that_counts_rows_is_left_out_by_name_and_kept_if_asked(begin: int, tmp_path: Path) -> None:
    words = [str(begin + n) for n in range(30)]
    series, _ = written(tmp_path, words, "i")
    assert series.columns == ("x",) and "; left out: i (row numbers)" in series.split
    for options in (",columns=i+x", ",target=i"):
        selected, _ = written(tmp_path, words, "i", options)
        assert sorted(selected.columns) == ["i", "x"] and "left out" not in selected.split
        assert selected.numbers[:, selected.columns.index("i")].tolist() == list(map(float, words))


def test_columns_that_do_not_count_rows_or_are_alone_are_numbers(tmp_path: Path) -> None:
    count = list(range(30))
    for numbers in (
        [n + 2 for n in count],
        [2 * n for n in count],
        [*count[:29], 30],
        count[::-1],
        [n % 7 for n in count],
    ):
        assert written(tmp_path, list(map(str, numbers)), "i")[0].columns == ("i", "x")
    (tmp_path / "a.csv").write_text("x,i\n" + "".join(f"{n % 7},{n}\n" for n in count))
    series = read_spec(f"series={tmp_path}/a.csv")
    assert isinstance(series, SeriesData) and series.columns == ("x", "i"), "it is not the first"
    (tmp_path / "a.csv").write_text("i\n" + "".join(f"{n}\n" for n in count))
    series = read_spec(f"series={tmp_path}/a.csv")
    assert isinstance(series, SeriesData) and series.columns == ("i",), "there is no other"


def test_numbers_that_may_be_dates_are_such_where_they_rise_evenly_or_are_called_so(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    odd = (1_600_000_000 + rng.integers(1, 9999, 60).cumsum()).tolist()
    series, messages = written(tmp_path, list(map(str, odd)), "visitors")
    assert series.columns == ("visitors", "x") and series.clock is None and not messages
    series, messages = written(tmp_path, list(map(str, odd)), "unix_time")
    assert series.columns == ("x",) and series.clock is not None and len(messages) == 1
    even = [str(1_600_000_000 + 60 * n) for n in range(60)]
    selected, _ = written(tmp_path, even, "visitors", ",columns=visitors+x")
    assert selected.columns == ("visitors", "x") and selected.clock is None
    with pytest.raises(ValueError, match="timestamp do not increase: got 1600000060 in line 4 after 1600000120,"):
        written(tmp_path, [even[0], even[2], even[1], *even[3:]], "timestamp")


def test_a_second_column_of_dates_and_words_are_left_out_and_named(tmp_path: Path) -> None:
    rows = "".join(f"{HOURS[n]},high,{20200101 + n % 28},{n % 5}\n" for n in range(28))
    (tmp_path / "a.csv").write_text(f"at,level,booked,x\n{rows}")
    series = read_spec(f"series={tmp_path}/a.csv")
    assert (
        isinstance(series, SeriesData)
        and series.columns == ("x",)
        and series.clock is not None
        and series.clock.name == "at"
    )
    assert series.split.endswith("; left out: booked (dates), level")


def test_lines_are_counted_as_they_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "date,x\n\n2020-01-01,1\n2020-01-02,2\n\n2020-01-02,3\n2020-01-04,3\n2020-01-05,3\n2020-01-06,3\n"
    )
    with pytest.raises(ValueError, match="got 2020-01-02 in line 6 after 2020-01-02,"):
        read_spec(f"series={tmp_path}/a.csv")
