"""Induction: what followed a mark when it came before follows it again."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import TaskRow
from kinformer.lab.tasks.support.word_tasks import Letters


@dataclass(frozen=True)
class Induction(Letters):
    """Letters with one mark among them, and the mark again: `fbda>cgeh>c`, where the last letter is asked for.

    Choose it for the smallest case of learning in context: to find where the mark stood, and to write what came next,
    takes two layers of attention that look at one token alone, or one layer that sees pairs. Guessing scores
    1 / symbols, by default 0.05.

    length: letters in a row; the mark stands before any of them.
    symbols: how many different ones there are, letters, up to 52.

    Errors: ValueError for sizes without a meaning. Source: Olsson et al., 2022, arXiv:2209.11895; in this form: Fu et
    al., 2022, arXiv:2212.14052, table 1, of rows of 30 and 20 symbols.
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
