"""How far a long reading is: a bar on a terminal, a plain line now and then elsewhere, and the time that is left."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kinformer.train.progress import EVERY, clock


class Hear(Protocol):
    """Is told how much is done, and what more there is to say of it."""

    def __call__(self, done: int, more: str = "") -> None: ...


@contextmanager
def progress(name: str, total: int, unit: str) -> Iterator[Hear]:
    """A function that is told how much of the total is done; it says so on stderr."""
    began = monotonic()

    def line(done: int, more: str = "") -> str:
        left = clock((monotonic() - began) * (total - done) / done) if done else "?"
        return f"{done:,} of {total:,} {unit}{more and f', {more}'}, {left} left"

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[line]}"))
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(name, total=max(total, 1), line=line(0))
            yield lambda done, more="": shown.update(task, completed=done, line=line(done, more))
        return
    said = began

    def now_and_then(done: int, more: str = "") -> None:
        nonlocal said
        if monotonic() - said >= EVERY:
            said = monotonic()
            print(f"{name}: {line(done, more)}", file=sys.stderr, flush=True)

    yield now_and_then
