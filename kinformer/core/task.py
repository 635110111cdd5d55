"""Task: a synthetic problem with known answers, as rows of readable symbols."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy
from numpy.random import Generator

from kinformer.core.keyword_hints import KeywordHints

LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = b"0123456789"
TRIED = 2_000  # rows from which the accuracy of guessing is estimated


class TaskRow(NamedTuple):
    """A row of a task, in which a symbol is a byte.

    pieces: pairs of a question and the answer that follows it.
    """

    pieces: Sequence[tuple[bytes, bytes]]

    @property
    def question(self) -> bytes:
        """All questions of the row."""
        return b"".join(question for question, _ in self.pieces)

    @property
    def answer(self) -> bytes:
        """All answers of the row."""
        return b"".join(answer for _, answer in self.pieces)

    @property
    def text(self) -> bytes:
        """The whole row: each question followed by its answer."""
        return b"".join(question + answer for question, answer in self.pieces)

    @property
    def answer_mask(self) -> list[bool]:
        """True at the symbols of answers."""
        return [mark for question, answer in self.pieces for mark in (*[False] * len(question), *[True] * len(answer))]


class Task(KeywordHints, ABC):
    """Base class of synthetic problems: a frozen dataclass with the problem's sizes as fields.

    All fields have defaults. A subclass writes `width` and `row`. A task is a file of `lab/tasks/` with one such class,
    and `kinformer train gpt --data task=NAME,size=8` trains on it. All rows have the same number of answer symbols, and
    only the question determines the answer.
    """

    kind: ClassVar[str] = "task"

    @property
    @abstractmethod
    def width(self) -> int:
        """The largest number of symbols in a row."""

    @abstractmethod
    def row(self, rng: Generator) -> TaskRow:
        """Return a random row of the problem."""

    @property
    def chance_accuracy(self) -> float:
        """The accuracy of guessing, at each place of the answer, the symbol that is most frequent there.

        The guess does not depend on the question. The accuracy is estimated from random rows unless a task overrides
        it.
        """
        rng = numpy.random.default_rng(0)
        places = zip(*(self.row(rng).answer for _ in range(TRIED)), strict=True)
        shares = [Counter(place).most_common(1)[0][1] / TRIED for place in places]
        return sum(shares) / len(shares)


def draw_symbols(symbols: bytes, count: int, rng: Generator, *, replace: bool = True) -> bytes:
    """Return `count` random symbols out of `symbols`, each with the same probability.

    symbols: the symbols.
    count: the number of symbols to return.
    rng: the random generator.
    replace: True if a symbol may occur repeatedly.
    """
    return bytes(symbols[n] for n in rng.choice(len(symbols), count, replace=replace))
