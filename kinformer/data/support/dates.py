"""Dates of a series: where its column of them is, and the calendar of each row."""

from collections.abc import Container, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

DAY = timedelta(days=1)


class Clock(NamedTuple):
    """The column of dates: its name, when its rows were, and the time from one to the next, that of the first two."""

    name: str
    dates: tuple[datetime, ...]

    @property
    def step(self) -> timedelta:
        return self.dates[1] - self.dates[0]

    @property
    def day(self) -> int:
        """How many rows a day has; 1 where they are a day or more apart."""
        return max(1, round(DAY / self.step)) if self.step else 1

    def after(self, count: int) -> tuple[datetime, ...]:
        """When the rows behind the last one are."""
        return tuple(self.dates[-1] + n * self.step for n in range(1, count + 1))


def clock(names: Sequence[str], body: Sequence[Sequence[str]], numbers: Container[int]) -> Clock | None:
    """The first column that holds nothing but dates, as 2016-07-01 00:00:00, later ones below; None without one.

    Columns of numbers are none.
    """
    for n, name in enumerate(names):
        if n in numbers:
            continue
        try:
            dates = tuple(datetime.fromisoformat(row[n]) for row in body)
            if dates[0] < dates[1]:
                return Clock(name, dates)
        except (ValueError, TypeError):  # no date, or times with and without a zone
            continue
    return None


def calendar(dates: Sequence[datetime]) -> Float[Tensor, "N 5"]:
    """The minute, hour, day of the week, of the month and of the year of each date, from -1/2 to 1/2."""
    parts = [
        (at.minute / 59, at.hour / 23, at.weekday() / 6, (at.day - 1) / 30, (at.timetuple().tm_yday - 1) / 365)
        for at in dates
    ]
    return torch.tensor(parts, dtype=torch.float32).view(-1, 5) - 0.5
