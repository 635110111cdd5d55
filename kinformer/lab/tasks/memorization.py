"""Memorization: a dictionary that is the same in all rows is learned into the weights."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy
from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import DIGITS, LETTERS, Task, TaskRow


@dataclass(frozen=True)
class Memorization(Task):
    """Keys of a fixed dictionary, each with a mark that asks for its digit: `k?3b?7x?1`.

    The dictionary is the same in all rows and all splits, and no row lists it. Choose it to measure how many facts the
    weights of a model hold. In `recall`, the facts are in the row; here they must be in the weights. Keys of a row
    differ, so no answer stands earlier in the row. Each digit belongs to equally many keys, or one more. Guessing
    scores 1 / values if `values` divides `entries`, by default 0.125.

    entries: number of keys in the dictionary, up to 52 ** key_length.
    key_length: number of letters of a key, up to 3.
    values: number of different digits, up to 10.
    queries: number of keys in a row, at least 2 and at most `entries`.
    dictionary: seed of the dictionary.

    Errors: ValueError if a size is out of range.
    Source: Poli et al., 2024, arXiv:2403.17844, memorization of MAD (256 to 8,192 tokens, half of them keys).

    Differences: in MAD each key has a value of its own, keys may repeat in a row, and the models do not read the
    answers.
    """

    entries: int = 32
    key_length: int = 1
    values: int = 8
    queries: int = 8
    dictionary: int = 0

    def __post_init__(self) -> None:
        check_whole_between("key_length", self.key_length, 1, 3)
        check_whole_between("values", self.values, 2, len(DIGITS))
        check_whole_between("entries", self.entries, 2, len(LETTERS) ** self.key_length)
        check_whole_between("queries", self.queries, 2, self.entries)
        check_at_least("dictionary", self.dictionary, 0)

    @property
    def width(self) -> int:
        return self.queries * (self.key_length + 2)

    @property
    def chance_accuracy(self) -> float:
        return ceil(self.entries / self.values) / self.entries

    def row(self, rng: Generator) -> TaskRow:
        queried = rng.choice(self.entries, self.queries, replace=False)
        return TaskRow([(self._facts[n][0] + b"?", self._facts[n][1]) for n in queried])

    @cached_property
    def _facts(self) -> list[tuple[bytes, bytes]]:
        """The keys of the dictionary with their digits, drawn once for the task and not for each row."""
        fixed = numpy.random.default_rng(self.dictionary)
        keys = fixed.choice(len(LETTERS) ** self.key_length, self.entries, replace=False)
        digits = fixed.permutation(numpy.arange(self.entries) % self.values)
        return [(_spell(int(key), self.key_length), DIGITS[n : n + 1]) for key, n in zip(keys, digits, strict=True)]


def _spell(key: int, length: int) -> bytes:
    """Return the letters of a key, which is a number written with letters as digits."""
    return bytes(LETTERS[key // len(LETTERS) ** place % len(LETTERS)] for place in range(length))


EXAMPLES = (Memorization, lambda: Memorization(100, 2, values=7, queries=4, dictionary=1))
