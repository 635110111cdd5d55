"""Induction: the letter after the first mark is written again after the second mark."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import TaskRow
from kinformer.lab.tasks.support.word_tasks import Letters


@dataclass(frozen=True)
class Induction(Letters):
    """Letters with one mark among them, then the mark and the letter after it again: `fbda>cgeh>c`.

    The last letter is the answer. Choose it as the smallest case of in-context learning. A model must find the first
    mark and write the letter after it. Two attention layers that each look at one token can do it, or one layer that
    sees pairs of neighbouring tokens. Guessing scores 1 / symbols, by default 0.05.

    length: number of letters in a row; the first mark stands before one of them, at random.
    symbols: number of different letters, up to 52.

    Errors: ValueError if a size is out of range.
    Source: Olsson et al., 2022, arXiv:2209.11895; in this form: Fu et al., 2022, arXiv:2212.14052, table 1, of rows of
    30 and 20 symbols.
    """

    length: int = 30
    symbols: int = 20

    def __post_init__(self) -> None:
        check_at_least("length", self.length, 1)
        super().__post_init__()

    @property
    def width(self) -> int:
        return self.length + 3

    def row(self, rng: Generator) -> TaskRow:
        letters = self.letters(self.length, rng)
        at = int(rng.integers(self.length))
        return TaskRow([(letters[:at] + b">" + letters[at:] + b">", letters[at : at + 1])])


EXAMPLES = (Induction, lambda: Induction(6, 4))
