"""Fuzzy in-context recall: keys and values have several symbols; a repeated key asks for its value."""

from dataclasses import dataclass

import numpy
from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import DIGITS, LETTERS, Task, TaskRow, draw_symbols
from kinformer.lab.tasks.support.key_value_rows import ask_repeated


@dataclass(frozen=True)
class FuzzyInContextRecall(Task):
    """Keys of letters and values of digits, both of 1 to `longest` symbols: `ab31c7bda204c7ab31`.

    Digits after a key that occurs again are the answers. Choose it to see whether a model groups neighbouring symbols:
    `b` and `ab` are different keys. A key ends where its digits begin. Guessing scores 1 / digits, by default 0.125.

    A model that ignores keys and answers with a random one of the different values so far in the row writes 0.28 of the
    symbols right. With 2 keys, 4 times and a `longest` of 2, as in the arena, it writes 0.58 right.

    keys: number of different keys in a row.
    times: number of times that each key occurs, in random order; at least 2.
    longest: maximum number of symbols of a key and of a value. The lengths are 1, 2, ..., `longest`, 1, 2, ... in
        random order, separately for keys and values.
    letters: number of different letters, up to 52. The letters of a key differ.
    digits: number of different digits, up to 10. The digits of a value differ.

    Errors: ValueError if a size is out of range.
    Source: Poli et al., 2024, arXiv:2403.17844, fuzzy in-context recall of MAD (128 tokens, up to 3 for each key and
    value).

    Differences: the published rows draw keys and lengths at random, so the number of answers varies, and they are
    padded on the left. Published models are trained on all tokens, and the models here only on the answers. Published
    models are tested with keys of the maximum length only.
    """

    keys: int = 6
    times: int = 3
    longest: int = 3
    letters: int = 8
    digits: int = 8

    def __post_init__(self) -> None:
        check_whole_between("letters", self.letters, 1, len(LETTERS))
        check_whole_between("digits", self.digits, 2, len(DIGITS))
        check_at_least("times", self.times, 2)
        check_whole_between("longest", self.longest, 1, min(self.letters, self.digits))
        check_whole_between("keys", self.keys, 1, self.letters * self.longest)  # as many of one letter as letters

    @property
    def width(self) -> int:
        return 2 * self.times * sum(self._lengths)

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.digits

    @property
    def _lengths(self) -> list[int]:
        return [1 + n % self.longest for n in range(self.keys)]

    def row(self, rng: Generator) -> TaskRow:
        keys: dict[bytes, None] = {}
        for length in self._lengths:
            while (key := draw_symbols(LETTERS[: self.letters], length, rng, replace=False)) in keys:
                pass
            keys[key] = None
        lengths = rng.permutation(self._lengths)
        values = [draw_symbols(DIGITS[: self.digits], int(length), rng, replace=False) for length in lengths]
        pairs = list(zip(keys, values, strict=True))
        return ask_repeated(pairs[n] for n in rng.permutation(numpy.repeat(range(self.keys), self.times)))


EXAMPLES = (FuzzyInContextRecall, lambda: FuzzyInContextRecall(4, 2, longest=2, letters=20, digits=10))
