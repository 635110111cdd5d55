"""What a training shows while it runs: one live line on a terminal, a plain line now and then elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

EVERY = 10.0


@dataclass(frozen=True)
class Status:
    """Where a training stands: `spent` of its budget, loss (smoothed) and metric (last measured on valid), speed."""

    step: int
    spent: float
    seconds: float
    tokens: int
    train: float
    valid: float | None
    unit: str = "bits per byte"
    counted: str = "tokens"

    def __str__(self) -> str:
        bits = self.unit.startswith("bits")  # of which the loss is too; another metric is of valid alone
        learned = f"{self.train:.3f} {self.unit}" if bits else f"loss {self.train:.3f}"
        valid = "" if self.valid is None else f", valid {self.valid:.3f}{'' if bits else f' {self.unit}'}"
        speed = f"{self.tokens / max(self.seconds, 1e-9):,.0f} {self.counted}/s"
        return f"step {self.step:,}: {learned}{valid}, {speed}, {self.time_left} left"

    @property
    def time_left(self) -> str:
        """The training time that remains at this pace."""
        if not self.spent:
            return "?"
        return clock(self.seconds * (1 - min(self.spent, 1)) / self.spent)


class ProgressDisplay:
    """What is told of a training as it goes; this one shows nothing."""

    def status(self, status: Status) -> None:
        """The training has made a step."""

    def begin_measuring(self, count: int) -> None:
        """The training pauses to be measured on so many bytes of valid."""


class LineDisplay(ProgressDisplay):
    """A plain line at most every ten seconds of training: for logs and pipes."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name, self.next = console, name, 0.0

    def status(self, status: Status) -> None:
        """Print the status where the last one is ten seconds old, and at the end."""
        if status.seconds >= self.next or status.spent >= 1:
            self.next = status.seconds + EVERY
            self.console.print(f"{self.name}: {status}", soft_wrap=True, markup=False, highlight=False)

    def begin_measuring(self, count: int) -> None:
        """Print it: on a slow machine it takes a while."""
        self.console.print(
            f"{self.name}: measuring on valid, {count:,} bytes ...", soft_wrap=True, markup=False, highlight=False
        )


class LiveDisplay(ProgressDisplay):
    """A bar and a line that change in place: for terminals."""

    def __init__(self, progress: Progress, task: TaskID, name: str) -> None:
        self.progress, self.task, self.name = progress, task, name

    def status(self, status: Status) -> None:
        """Change the line."""
        self.progress.update(self.task, completed=min(status.spent, 1.0), status=str(status))

    def begin_measuring(self, count: int) -> None:
        """Say so in place of the line."""
        self.progress.update(self.task, status=f"measuring on valid, {count:,} bytes ...")


@contextmanager
def show(console: Console, name: str) -> Iterator[ProgressDisplay]:
    """The way to show a training on a console: live where it is a terminal."""
    if not console.is_terminal:
        yield LineDisplay(console, name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield LiveDisplay(progress, progress.add_task(name, total=1.0, status="starting"), name)


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
