"""The last digit of twice a number."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.task import Task, TaskRow


@dataclass(frozen=True)
class Twice(Task):
    """`07=4`. Choose it to see that a task is a file. Guessing scores 0.2.

    most: numbers are below it, up to 100.
    """

    most: int = 100

    @property
    def width(self) -> int:
        return 4

    def row(self, rng: Generator) -> TaskRow:
        n = int(rng.integers(self.most))
        return TaskRow([(b"%02d=" % n, b"%d" % (2 * n % 10))])


EXAMPLES = (Twice,)
