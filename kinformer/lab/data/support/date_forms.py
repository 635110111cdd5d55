"""Date formats: write new dates of a series in the format of its file.

A format is accepted only if it reproduces every row of the column exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import product

EPOCH, MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
# Y year; m, d month and day of two digits; n, j without a leading 0
DAYS = [
    sign.join(fields)
    for fields in (
        ("{Y}", "{m}", "{d}"),
        ("{d}", "{m}", "{Y}"),
        ("{m}", "{d}", "{Y}"),
        ("{Y}", "{m}"),
        ("{Y}", "{n}", "{j}"),
        ("{j}", "{n}", "{Y}"),
        ("{n}", "{j}", "{Y}"),
        ("{Y}", "{n}"),
    )
    for sign in "-/."
]
NUMBERS = ["{Y}{m}{d}", "{Y}{m}{d}.0", "{Y}", "{Y}.0"]
# H, I hour of 24 and of 12 in two digits; G, g without a leading 0; M minute, S second, f1 to f6 its fraction
SECONDS = ["", ":{S}", *(f":{{S}}.{{f{n}}}" for n in range(1, 7))]
TIMES = [f"{hour}:{{M}}{second}" for hour, second in product(("{H}", "{G}"), SECONDS)]
HALVES = ["".join(parts) for parts in product(("{I}:{M}", "{g}:{M}"), SECONDS[:2], (" {p}", "{p}", " {q}", "{q}"))]
ZONES = ["", "Z", "{z}", "{basic_z}"]
TICKS = 1, 10**3, 10**6, 10**9  # a second, of unix times
Form = Callable[[datetime], str]


def form_of(words: Sequence[str], dates: Sequence[datetime]) -> Form:
    """Return the date format in which a column of a series is written.

    If no known format reproduces all cells, it is ISO 8601 with a space between date and time.

    words: the cells of the column.
    dates: the dates in these cells.
    """
    words = [word.strip() for word in words]
    for form in _forms(words[0], dates[0]) if words else ():
        if all(form(date) == word for date, word in zip(dates, words, strict=True)):
            return form
    return str


def _forms(word: str, date: datetime) -> Iterator[Form]:
    """Yield all formats that write this date as this word."""
    fields = _fields(date)
    times = (f"{mark}{time}{zone}" for mark, time, zone in product(" T", TIMES + HALVES, ZONES))
    for template in (*NUMBERS, *("".join(parts) for parts in product(DAYS, ("", *times)))):
        if template.format_map(fields) == word:
            yield partial(_fill_template, template)
    for ticks, digits in product(TICKS, range(10)):
        if date.tzinfo is None and _unix(ticks, digits, date) == word:
            yield partial(_unix, ticks, digits)


def _fill_template(template: str, date: datetime) -> str:
    return template.format_map(_fields(date))


def _fields(date: datetime) -> dict[str, str]:
    half, zone = "AM" if date.hour < 12 else "PM", f"{date:%z}"
    hour = date.hour % 12 or 12
    numbers = {
        "Y": f"{date.year:04}",
        "m": f"{date.month:02}",
        "d": f"{date.day:02}",
        "n": str(date.month),
        "j": str(date.day),
        "H": f"{date.hour:02}",
        "G": str(date.hour),
        "I": f"{hour:02}",
        "g": str(hour),
        "M": f"{date.minute:02}",
        "S": f"{date.second:02}",
        "p": half,
        "q": half.lower(),
        "basic_z": zone,
        "z": f"{zone[:3]}:{zone[3:]}" if zone else "",
    }
    return numbers | {f"f{n}": f"{date.microsecond:06}"[:n] for n in range(1, 7)}


def _unix(ticks: int, digits: int, date: datetime) -> str:
    """Return the time since 1970 in units of 1 / `ticks` seconds, with `digits` decimals."""
    return f"{Decimal((date - EPOCH) // MICROSECOND) * ticks / 10**6:.{digits}f}"
