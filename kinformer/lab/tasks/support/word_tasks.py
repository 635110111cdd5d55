"""Letters and Words: base classes for tasks about letters, with the score of a guess."""

from abc import abstractmethod
from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import LETTERS, Task, TaskRow, draw_symbols


class Letters(Task):
    """Base class of a task about the first `symbols` letters, all equally likely.

    A guess of a letter is right with probability 1 / symbols. A subclass supplies the rows of the task.
    """

    symbols: int

    def __post_init__(self) -> None:
        check_whole_between("symbols", self.symbols, 2, len(LETTERS))

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.symbols

    def letters(self, count: int, rng: Generator) -> bytes:
        """Draw `count` random letters."""
        return draw_symbols(LETTERS[: self.symbols], count, rng)


@dataclass(frozen=True)
class Words(Letters):
    """Base class of a task with a word of `length` letters, a bar, and an answer of the same length.

    A subclass supplies `answer`.

    length: number of letters of the word.
    symbols: number of different letters, up to 52.
    """

    length: int = 12
    symbols: int = 8

    def __post_init__(self) -> None:
        check_at_least("length", self.length, 1)
        super().__post_init__()

    @abstractmethod
    def answer(self, word: bytes) -> bytes:
        """Return the correct answer to a word, such as the word backwards."""

    @property
    def separator(self) -> bytes:
        """Text between the word and the answer."""
        return b"|"

    @property
    def width(self) -> int:
        return 2 * self.length + len(self.separator)

    def row(self, rng: Generator) -> TaskRow:
        word = self.letters(self.length, rng)
        return TaskRow([(word + self.separator, self.answer(word))])
