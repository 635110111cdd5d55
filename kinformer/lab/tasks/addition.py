"""Addition: two numbers with a fixed number of digits, and their sum."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_flag, check_whole_between
from kinformer.core.task import Task, TaskRow


@dataclass(frozen=True)
class Addition(Task):
    """Two numbers and their sum, padded with zeros: `027+914=0941`.

    Choose it to see whether a model finds an algorithm. A digit of the sum depends on two digits and on a carry, which
    all later digits of the numbers may change. With `backwards`, each carry is known when it is needed. Guessing scores
    0.1 for most digits of the sum and about 0.5 for its first, which is 0 or 1; on average 0.2 by default.

    digits: number of digits of each number, up to 18; the sum has one more.
    backwards: True if the sum is written from its last digit to its first.

    Errors: ValueError if a size is out of range.
    Source: Zaremba and Sutskever, 2014, arXiv:1410.4615, section 4; backwards: Lee et al., 2023, arXiv:2307.03381.
    """

    digits: int = 3
    backwards: bool = False

    def __post_init__(self) -> None:
        check_whole_between("digits", self.digits, 1, 18)
        check_flag("backwards", self.backwards)

    @property
    def width(self) -> int:
        return 3 * self.digits + 3

    @property
    def chance_accuracy(self) -> float:
        carried = 0.5 - 0.5 * 10**-self.digits  # share of sums of at least 10^n; other digits are uniform
        return (1 - carried + 0.1 * self.digits) / (self.digits + 1)

    def row(self, rng: Generator) -> TaskRow:
        first, other = (int(n) for n in rng.integers(10**self.digits, size=2))
        total = f"{first + other:0{self.digits + 1}}"
        question = f"{first:0{self.digits}}+{other:0{self.digits}}="
        return TaskRow([(question.encode(), (total[::-1] if self.backwards else total).encode())])


EXAMPLES = (Addition, lambda: Addition(2, backwards=True))
