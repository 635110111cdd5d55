"""Rows of a task as a page shows them, each answer marked underneath."""

from collections.abc import Iterator

import numpy

from kinformer.core.task import Task

SHOWN, WIDTH = 3, 100


def task_lines(task: Task) -> Iterator[str]:
    """A few rows that are the same each time, and what guessing scores."""
    chance = numpy.random.default_rng(0)
    yield f"rows of at most {task.width:,} symbols, their answers marked; guessing scores {task.guessing:.3f}"
    for _ in range(SHOWN):
        row = task.row(chance)
        text, marks = row.text.decode(), "".join("^" if mark else " " for mark in row.scored)
        yield ""
        for first in range(0, len(text), WIDTH):
            yield f"  {text[first : first + WIDTH]}"
            if markers := marks[first : first + WIDTH].rstrip():
                yield f"  {markers}"
