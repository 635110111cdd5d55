"""Progress of a long computation on stderr: a bar on a terminal, otherwise a plain line now and then."""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import Protocol

from rich.progress import BarColumn, Progress, TextColumn

from kinformer.cli.support.console import plain_console
from kinformer.lab.train.progress import EVERY, clock

SILENT = 2.0  # seconds until the first line, even if nothing is done yet
# number of recent reports that determine the speed, which may change; and the least seconds between two of them
LATELY, APART = 20, 1.0


class ProgressListener(Protocol):
    """Callback to report progress: it takes the amount that is done, and an optional note to print."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress(name: str, total: int, unit: str, recent: int | None = LATELY) -> Iterator[ProgressListener]:
    """Return a callback that prints the progress and the remaining time on stderr.

    name: name of the computation, such as "measuring".
    total: the total amount, at which the computation is complete.
    unit: the unit of the total, such as "tokens".
    recent: number of recent reports whose speed predicts the remaining time; None for all, where work of several kinds
        alternates.
    """
    began = monotonic()
    reports = deque([(began, 0)], recent)

    def line(done: int, note: str = "") -> str:
        now, (since, before) = monotonic(), reports[0]
        if done > reports[-1][1] and now - reports[-1][0] >= APART:
            reports.append((now, done))
        left = clock((now - since) * (total - done) / (done - before)) if done > before else "?"
        return f"{done:,} of {total:,} {unit}{note and f', {note}'}, {left} left"

    console = plain_console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[line]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as display:
            task = display.add_task(name, total=max(total, 1), line=line(0))
            yield lambda done, note="": display.update(task, completed=done, line=line(done, note))
        return
    last_printed = began

    def print_line(text: str) -> None:
        print(f"{name}: {text}", file=sys.stderr, flush=True)

    def now_and_then(done: int, note: str = "") -> None:
        nonlocal last_printed
        text = line(done, note)
        if monotonic() - last_printed >= EVERY:
            last_printed = monotonic()
            print_line(text)

    first = Timer(SILENT, print_line, ["..." if unit == "%" else f"{total:,} {unit} ..."])
    first.daemon = True
    first.start()
    try:
        yield now_and_then
    finally:
        first.cancel()
