"""Law answers: the rows of a task depend only on the seed, and an answer only on its question."""

from collections.abc import Iterator

import numpy

from kinformer.core.task import Task, TaskRow

SAYS = "its rows follow the seed, and a question decides its answer, in readable symbols, no more than it says"
OVER = "task"
ROWS = 300
PRINTED = range(32, 127)


def judge(task: Task) -> Iterator[str]:
    """Draw rows from two seeds and yield a finding for each violation.

    task: the task to judge.
    """
    rows = _rows(task, 0)
    if rows != _rows(task, 0):
        yield "rows from the same seed differ: draw everything from the generator that `row` is given"
    if rows == _rows(task, 1):
        yield "rows from different seeds are the same: draw them from the generator that `row` is given"
    answers: dict[bytes, bytes] = {}
    for row in rows:
        yield from _check_row(row, task)
        if answers.setdefault(row.question, row.answer) != row.answer:
            first, second = answers[row.question], row.answer
            yield f"the question {_show(row.question)} has the answers {_show(first)} and {_show(second)}"
    counts = sorted({len(row.answer) for row in rows})
    if len(counts) > 1:
        yield f"answers have {counts[0]} symbols and {counts[-1]}; give all as many, or guessing has no score"
    if not 0 <= task.chance_accuracy <= 1:
        yield f"chance_accuracy is {task.chance_accuracy!r}, and a share is from 0 to 1"


def _rows(task: Task, seed: int) -> list[TaskRow]:
    rng = numpy.random.default_rng(seed)
    return [task.row(rng) for _ in range(ROWS)]


def _check_row(row: TaskRow, task: Task) -> Iterator[str]:
    """Yield findings about a single row."""
    if len(row.text) > task.width:
        yield f"{_show(row.text)} has {len(row.text)} symbols, and width says at most {task.width}"
    if not row.question or not row.pieces[0][0]:
        yield f"{_show(row.text)} begins with an answer, before which nothing was asked"
    if not row.answer:
        yield f"{_show(row.text)} asks for nothing"
    if any(symbol not in PRINTED for symbol in row.text):
        yield f"{row.text!r} has a symbol that is not printed; use letters, digits and brackets"


def _show(text: bytes) -> str:
    return repr(text.decode(errors="replace"))
