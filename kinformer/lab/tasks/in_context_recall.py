"""In-context recall: a stream of pairs, in which each key that occurs again asks for its value."""

from collections.abc import Iterator
from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import DIGITS, LETTERS, Task, TaskRow, draw_symbols
from kinformer.lab.tasks.support.key_value_rows import ask_repeated


@dataclass(frozen=True)
class InContextRecall(Task):
    """Pairs of a letter and a digit, in which letters occur again: `a3c7a3b1c7a3`.

    Digits of repeated letters are the answers. A letter has the same digit in the whole row, and a random one in each
    other row. Choose it if a model must recall while it still reads new pairs. In `recall`, all pairs are listed before
    the first query. Guessing scores 1 / values, by default 0.125.

    A model that ignores keys and answers with a random one of the different values so far in the row scores 0.23. With
    8 pairs and 2 keys, as in the arena, it scores 0.62.

    pairs: number of pairs in a row, more than `keys`.
    keys: number of different letters, up to 52. Each letter occurs at least once; the remaining pairs draw
        letters at random.
    values: number of different digits, up to 10.

    Errors: ValueError if a size is out of range.
    Source: Poli et al., 2024, arXiv:2403.17844, in-context recall of MAD (64 pairs, 8 keys and 8 values).

    Differences: in the published rows, all letters are drawn at random, so the number of answers varies. The published
    models are trained on all tokens, and the models here only on the answers.
    """

    pairs: int = 32
    keys: int = 8
    values: int = 8

    def __post_init__(self) -> None:
        check_whole_between("keys", self.keys, 1, len(LETTERS))
        check_whole_between("values", self.values, 2, len(DIGITS))
        check_at_least("pairs", self.pairs, self.keys + 1)

    @property
    def width(self) -> int:
        return 2 * self.pairs

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.values

    def row(self, rng: Generator) -> TaskRow:
        return ask_repeated(self._draw_pairs(rng))

    def _draw_pairs(self, rng: Generator) -> Iterator[tuple[bytes, bytes]]:
        """Draw the pairs of a row. The last key is drawn from all keys, so it is a repeated key."""
        values = draw_symbols(DIGITS[: self.values], self.keys, rng)
        *further, last = rng.integers(self.keys, size=self.pairs - self.keys)
        for n in (*rng.permutation([*range(self.keys), *further]), last):
            yield LETTERS[n : n + 1], values[n : n + 1]


EXAMPLES = (InContextRecall, lambda: InContextRecall(6, 4, values=10))
