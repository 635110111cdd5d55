"""Sequence compression: all symbols of a random row are queried by position, in random order."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_whole_between
from kinformer.core.task import Task, TaskRow, draw_symbols
from kinformer.lab.tasks.support.key_value_rows import KEYS, VALUES, ask_listed


@dataclass(frozen=True)
class SequenceCompression(Task):
    """Random symbols, a bar, and each position with its symbol, in random order: `3170|c7a3d0b1`.

    A letter names a position: `c` names the third. Choose it to measure how much of a random sequence a state holds. At
    the bar, a recurrent model must hold all `length` symbols. Attention over the whole row holds them in its cache and
    only looks positions up, so compare members with states of fixed size. In `copy`, a model can follow the order of
    the symbols. Guessing scores 1 / symbols, by default 0.125.

    length: number of symbols to remember, up to 64.
    symbols: number of different symbols, up to 29.

    Errors: ValueError if a size is out of range.
    Source: Poli et al., 2024, arXiv:2403.17844, compression of MAD (31 random tokens of 15
    symbols, and a compression token of its own symbol).

    Differences: in MAD, an encoder compresses the row into the vector of its last token, and an MLP decodes each
    position from that vector and the position. Models here only read and write symbols. So the name of a position asks
    for its symbol, and the state after the bar takes the place of the vector.
    """

    length: int = 12
    symbols: int = 8

    def __post_init__(self) -> None:
        check_whole_between("length", self.length, 1, len(KEYS))
        check_whole_between("symbols", self.symbols, 2, len(VALUES))

    @property
    def width(self) -> int:
        return 3 * self.length + 1

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.symbols

    def row(self, rng: Generator) -> TaskRow:
        sequence = draw_symbols(VALUES[: self.symbols], self.length, rng)
        queries = ((KEYS[n : n + 1], sequence[n : n + 1]) for n in rng.permutation(self.length))
        return ask_listed(sequence + b"|", queries)


EXAMPLES = (SequenceCompression, lambda: SequenceCompression(5, 20))
