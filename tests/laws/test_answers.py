"""The law answers finds what is wrong with a task's rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
from numpy.random import Generator

from kinformer.core.task import Task, TaskRow
from kinformer.lab.tasks.copy import Copy
from kinformer.laws import answers


@dataclass(frozen=True)
class Made(Task):
    """Copies whose rows are changed."""

    change: Callable[[TaskRow, Generator], TaskRow] = lambda row, rng: row
    scores: float = 0.1

    @property
    def width(self) -> int:
        return 25

    @property
    def chance_accuracy(self) -> float:
        return self.scores

    def row(self, rng: Generator) -> TaskRow:
        return self.change(Copy().row(rng), rng)


def answered(answer: Callable[[bytes, Generator], bytes]) -> Made:
    return Made(lambda row, rng: TaskRow([(row.question, answer(row.answer, rng))]))


unseeded = numpy.random.default_rng(0)
BROKEN: dict[str, tuple[Any, str]] = {
    "not seeded": (Made(lambda row, rng: Copy().row(unseeded)), "rows with the same seed differ"),
    "one row": (Made(lambda row, rng: Copy().row(numpy.random.default_rng(0))), "different seeds are the same"),
    "by chance": (
        Made(lambda row, rng: TaskRow([(b"a|", b"ab"[(n := int(rng.integers(2))) : n + 1])])),
        "the question 'a|' has two answers, '",
    ),
    "too long": (answered(lambda answer, rng: answer + b"a"), "has 26 symbols, but the task has width=25"),
    "no question": (Made(lambda row, rng: TaskRow([(b"", row.answer)])), "begins with an answer"),
    "no answer": (answered(lambda answer, rng: b""), "contains no answer"),
    "not printed": (answered(lambda answer, rng: answer[:-1] + b"\n"), "has a symbol that is not printable"),
    "several lengths": (
        answered(lambda answer, rng: answer[: int(answer[0]) % 3 + 1]),
        "some answers have 1 symbols and others 3",
    ),
    "no share": (Made(scores=1.5), "chance_accuracy is 1.5, expected a number from 0 to 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_finds_what_is_wrong(name: str) -> None:
    task, says = BROKEN[name]
    assert says in next(iter(answers.judge(task)), "")


def test_it_holds_for_what_is_right() -> None:
    assert not list(answers.judge(Made()))
