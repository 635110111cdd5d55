"""Letters and Words: what tasks about letters share: the alphabet, the drawing, and what a guess scores."""

from abc import abstractmethod
from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import LETTERS, Task, TaskRow, draw_symbols


class Letters(Task):
    """A task over the first `symbols` letters, each as likely as the others; a guess is right one time in as many."""

    symbols: int

    def __post_init__(self) -> None:
        check_whole_between("symbols", self.symbols, 2, len(LETTERS))

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.symbols

    def letters(self, count: int, rng: Generator) -> bytes:
        """So many letters, drawn."""
        return draw_symbols(LETTERS[: self.symbols], count, rng)


@dataclass(frozen=True)
class Words(Letters):
    """A word of `length` letters, a bar, and what is made of the word, which has as many."""

    length: int = 12
    symbols: int = 8

    def __post_init__(self) -> None:
        check_at_least("length", self.length, 1)
        super().__post_init__()

    @abstractmethod
    def answer(self, word: bytes) -> bytes:
        """The answer to a word."""

    @property
    def separator(self) -> bytes:
        """What stands between the two."""
        return b"|"

    @property
    def width(self) -> int:
        return 2 * self.length + len(self.separator)

    def row(self, rng: Generator) -> TaskRow:
        word = self.letters(self.length, rng)
        return TaskRow([(word + self.separator, self.answer(word))])
