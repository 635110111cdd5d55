"""Law answers: the example rows of a task depend only on the seed, and an answer only on its question."""

from collections.abc import Iterator

import numpy

from kinformer.core.task import Task, TaskRow

SAYS = "rows depend only on the seed, an answer only on its question, and texts are printable and at most `width` long"
OVER = "task"
ROWS = 300
PRINTED = range(32, 127)


def judge(task: Task) -> Iterator[str]:
    """Draw example rows of a task from two seeds, and yield a sentence for each broken requirement.

    task: the task to test.

    Equal seeds give equal rows, and different seeds give different rows. Equal questions have equal answers, and all
    answers are equally long. The text of a row is printable and at most `task.width` long.
    """
    rows = _rows(task, 0)
    if rows != _rows(task, 0):
        yield "rows with the same seed differ; draw all random numbers from the generator that `row` receives"
    if rows == _rows(task, 1):
        yield "rows with different seeds are the same; draw them from the generator that `row` receives"
    answers: dict[bytes, bytes] = {}
    for row in rows:
        yield from _check_row(row, task)
        if answers.setdefault(row.question, row.answer) != row.answer:
            first, second = answers[row.question], row.answer
            yield f"the question {_show(row.question)} has two answers, {_show(first)} and {_show(second)}; give it one"
    counts = sorted({len(row.answer) for row in rows})
    if len(counts) > 1:
        yield (
            f"some answers have {counts[0]} symbols and others {counts[-1]}; give all the same number, or the score of "
            "guessing is undefined"
        )
    if not 0 <= task.chance_accuracy <= 1:
        yield f"chance_accuracy is {task.chance_accuracy!r}, expected a number from 0 to 1"


def _rows(task: Task, seed: int) -> list[TaskRow]:
    rng = numpy.random.default_rng(seed)
    return [task.row(rng) for _ in range(ROWS)]


def _check_row(row: TaskRow, task: Task) -> Iterator[str]:
    """Yield findings about a single row."""
    if len(row.text) > task.width:
        yield f"the text {_show(row.text)} has {len(row.text)} symbols, but the task has width={task.width}"
    if not row.question or not row.pieces[0][0]:
        yield f"the text {_show(row.text)} begins with an answer; put a question before it"
    if not row.answer:
        yield f"the text {_show(row.text)} contains no answer"
    if any(symbol not in PRINTED for symbol in row.text):
        yield f"the text {row.text!r} has a symbol that is not printable; use letters, digits and brackets"


def _show(text: bytes) -> str:
    return repr(text.decode(errors="replace"))
