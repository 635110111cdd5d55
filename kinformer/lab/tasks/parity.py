"""Parity: decide whether the number of ones in a row is odd."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class Parity(Task):
    """Zeros and ones, then 1 if the number of ones is odd, else 0: `0110100=1`.

    Choose it to distinguish models with a state from models that read all positions at once. One bit of state solves it
    at any length. Every single symbol changes the answer. A fixed number of softmax attention layers approximates it
    worse with growing length, and hardly learns it. Guessing scores 0.5.

    length: number of zeros and ones.

    Errors: ValueError if a size is out of range.
    Source: Hahn, 2019, arXiv:1906.06755; Graves, 2016, arXiv:1603.08983, section 3.1.
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
