"""Parity: is the number of ones in a row odd?"""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class Parity(Task):
    """Zeros and ones, and 1 where the ones are odd in number, else 0: `0110100=1`.

    Choose it to tell what carries a state from what reads all at once: one bit of state solves it at any length, while
    every symbol alone changes the answer, which soft attention of a fixed depth approximates ever worse with length and
    hardly learns. Guessing scores 0.5.

    length: symbols of the question.

    Errors: ValueError for sizes without a meaning. Source: Hahn, 2020, arXiv:1906.06755; Graves, 2016,
    arXiv:1603.08983, section 3.1.
    """

    length: int = 16

    def __post_init__(self) -> None:
        check_at_least("length", self.length, 1)

    @property
    def width(self) -> int:
        return self.length + 2

    @property
    def chance_accuracy(self) -> float:
        return 0.5

    def row(self, rng: Generator) -> TaskRow:
        bits = draw_symbols(b"01", self.length, rng)
        return TaskRow([(bits + b"=", b"01"[bits.count(b"1") % 2 :][:1])])


EXAMPLES = (Parity, lambda: Parity(12))
