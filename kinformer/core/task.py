"""Task: a made-up problem whose answers are known, of rows of readable symbols."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy
from numpy.random import Generator

LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = b"0123456789"
TRIED = 2_000  # rows that tell what guessing scores, where a task does not say it itself


class TaskRow(NamedTuple):
    """A row in pieces: each question, and the answer that follows it. A symbol is a byte."""

    pieces: Sequence[tuple[bytes, bytes]]

    @property
    def question(self) -> bytes:
        """All that is given."""
        return b"".join(question for question, _ in self.pieces)

    @property
    def answer(self) -> bytes:
        """All that is asked for."""
        return b"".join(answer for _, answer in self.pieces)

    @property
    def text(self) -> bytes:
        """The row as it is read."""
        return b"".join(question + answer for question, answer in self.pieces)

    @property
    def answer_mask(self) -> list[bool]:
        """Which of its symbols are answers."""
        return [mark for question, answer in self.pieces for mark in (*[False] * len(question), *[True] * len(answer))]


class Task(ABC):
    """A problem as a frozen dataclass: its fields, all with defaults, are its sizes.

    A file of `lab/tasks/` with one is a task, and `kinformer train gpt --data task=NAME,size=8` trains on it. All
    rows have answers of the same number of symbols, which the question alone decides.
    """

    kind: ClassVar[str] = "task"

    @property
    @abstractmethod
    def width(self) -> int:
        """The most symbols that a row has."""

    @abstractmethod
    def row(self, rng: Generator) -> TaskRow:
        """A row, drawn."""

    @property
    def chance_accuracy(self) -> float:
        """The share of answers that are right by guessing without a look at the row: the likeliest at each place.

        Estimated from rows where a task does not say it itself.
        """
        rng = numpy.random.default_rng(0)
        places = zip(*(self.row(rng).answer for _ in range(TRIED)), strict=True)
        shares = [Counter(place).most_common(1)[0][1] / TRIED for place in places]
        return sum(shares) / len(shares)


def draw_symbols(symbols: bytes, count: int, rng: Generator, *, replace: bool = True) -> bytes:
    """Draw `count` of these symbols uniformly; a symbol can repeat only if `replace` is true."""
    return bytes(symbols[n] for n in rng.choice(len(symbols), count, replace=replace))
