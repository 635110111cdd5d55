"""Copy at a distance: each answer repeats the symbol a fixed number of positions before it."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import TaskRow
from kinformer.lab.tasks.support.word_tasks import Letters


@dataclass(frozen=True)
class CopyAtDistance(Letters):
    """Several words, each followed at once by its copy: `abcd abcd bbda bbda` without the spaces.

    Choose it to measure how far back a model can look. To predict a symbol, a model must look exactly `distance` - 1
    positions before the last one that it has read. A model that cannot look or remember so far has to guess. Guessing
    scores 1 / symbols, by default 0.125.

    distance: symbols from a symbol to its copy, which is the length of a word.
    times: number of words, each with its copy.
    symbols: number of different letters, up to 52.

    Errors: ValueError if a size is out of range.
    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2, for how far segment recurrence looks back; here the test is
    a copy.
    """

    distance: int = 16
    times: int = 2
    symbols: int = 8

    def __post_init__(self) -> None:
        check_at_least("distance", self.distance, 1)
        check_at_least("times", self.times, 1)
        super().__post_init__()

    @property
    def width(self) -> int:
        return 2 * self.distance * self.times

    def row(self, rng: Generator) -> TaskRow:
        words = [self.letters(self.distance, rng) for _ in range(self.times)]
        return TaskRow([(word, word) for word in words])


EXAMPLES = (CopyAtDistance, lambda: CopyAtDistance(3, 4, symbols=20))
