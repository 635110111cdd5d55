"""Copy at a distance: every answer stands exactly so many symbols behind what it repeats."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import TaskRow
from kinformer.lab.tasks.support.word_tasks import Letters


@dataclass(frozen=True)
class CopyAtDistance(Letters):
    """A word and the same word at once behind it, several times: `abcd abcd bbda bbda` without the spaces.

    Choose it to measure reach: what predicts a symbol must look at the one `distance` - 1 before the last that it has
    read, no nearer and no further. A model that cannot look so far, or keeps less, guesses. Guessing scores
    1 / symbols, by default 0.125.

    distance: from a symbol to its copy, and so the length of a word.
    times: how many words, each with its copy.
    symbols: how many different ones there are, letters, up to 52.

    Errors: ValueError for sizes without a meaning. Source: the reach of segment recurrence, Dai et al., 2019,
    arXiv:1901.02860, section 3.2, asked as a copy.
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
