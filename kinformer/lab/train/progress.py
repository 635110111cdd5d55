"""Progress display of a training: a live line on a terminal, plain lines otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

EVERY = 10.0


@dataclass(frozen=True)
class Status:
    """Numbers of a training that its progress display shows.

    step: number of steps taken.
    spent: fraction of the budget that is spent.
    seconds: training time.
    tokens: number of tokens trained on.
    train: smoothed training loss.
    valid: last metric on validation data, or None.
    unit: unit of the metric.
    counted: word for what `tokens` counts, such as "tokens".
    measured: step of the last measurement on validation data.
    """

    step: int
    spent: float
    seconds: float
    tokens: int
    train: float
    valid: float | None
    unit: str = "bits per byte"
    counted: str = "tokens"
    measured: int = 0

    def __str__(self) -> str:
        # With bits the loss is in bits too; any other metric is measured only on validation data.
        bits = self.unit.startswith("bits")
        learned = f"{self.train:.3f} {self.unit}" if bits else f"loss {self.train:.3f}"
        unit = "" if bits else f" {self.unit}"
        valid = "" if self.valid is None else f", validation {self.valid:.3f}{unit} at step {self.measured:,}"
        speed = f"{self.tokens / max(self.seconds, 1e-9):,.0f} {self.counted}/s"
        return f"step {self.step:,}: {learned}{valid}, {speed}, {self.time_left} left"

    @property
    def time_left(self) -> str:
        """The remaining training time at the average speed so far, as text."""
        if not self.spent:
            return "?"
        return clock(self.seconds * (1 - min(self.spent, 1)) / self.spent)


class ProgressDisplay:
    """Base class of the displays of a training; it shows nothing."""

    def note(self, text: str) -> None:
        """Show a fact about the training before its first step, such as the number of trained weights."""

    def status(self, status: Status) -> None:
        """Show the status after a step."""

    def begin_measuring(self, count: int, unit: str) -> None:
        """Show that the training pauses for a measurement on validation data: `count` bytes, or tokens."""


class LineDisplay(ProgressDisplay):
    """A display that prints a plain line at most every ten seconds of training, for logs and pipes.

    console: the console to print on.
    name: name of the training.
    """

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name, self.next = console, name, 0.0

    def note(self, text: str) -> None:
        """Print the text as a line."""
        self.console.print(f"{self.name}: {text}", soft_wrap=True, markup=False, highlight=False)

    def status(self, status: Status) -> None:
        """Print the status if the last line is ten seconds old, and at the end."""
        if status.seconds >= self.next or status.spent >= 1:
            self.next = status.seconds + EVERY
            self.console.print(f"{self.name}: {status}", soft_wrap=True, markup=False, highlight=False)

    def begin_measuring(self, count: int, unit: str) -> None:
        """Print a line, because a measurement on a slow machine takes a while."""
        self.console.print(
            f"{self.name}: measuring on {count:,} {unit} of validation data ...",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )


class LiveDisplay(ProgressDisplay):
    """A display with a bar and a line that change in place, for terminals.

    progress: the bars of the terminal.
    task: the bar of this training.
    name: name of the training.
    """

    def __init__(self, progress: Progress, task: TaskID, name: str) -> None:
        self.progress, self.task, self.name = progress, task, name

    def note(self, text: str) -> None:
        """Print the text as a line above the bar."""
        self.progress.console.print(f"{self.name}: {text}", soft_wrap=True, markup=False, highlight=False)

    def status(self, status: Status) -> None:
        """Update the line."""
        self.progress.update(self.task, completed=min(status.spent, 1.0), status=str(status))

    def begin_measuring(self, count: int, unit: str) -> None:
        """Show the measurement in place of the status."""
        self.progress.update(self.task, status=f"measuring on {count:,} {unit} of validation data ...")


@contextmanager
def show(console: Console, name: str) -> Iterator[ProgressDisplay]:
    """Enter the display of a training: live on a terminal, plain lines otherwise.

    console: the console.
    name: name of the training.
    """
    if not console.is_terminal:
        yield LineDisplay(console, name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[status]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield LiveDisplay(progress, progress.add_task(name, total=1.0, status="starting"), name)


def clock(seconds: float) -> str:
    """Format seconds as 0:07, 12:30 or 1:02:03.

    seconds: the time.
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
