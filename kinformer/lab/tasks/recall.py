"""Associative recall: pairs of a key and a value are given, then keys ask for their values."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_whole_between
from kinformer.core.task import DIGITS, LETTERS, Task, TaskRow, draw_symbols
from kinformer.lab.tasks.support.key_value_rows import ask_listed


@dataclass(frozen=True)
class Recall(Task):
    """Letters with their digits, then some of the letters again with their digits: `a3c7k1|c7a3`.

    The digits after the bar are the answers. Choose it to compare mechanisms. Softmax attention finds a key again. A
    state of fixed size loses pairs if there are more than it can hold. All keys differ, and each is queried at most
    once. Guessing scores 0.1. Always answering the commonest value of the row scores more if there are few pairs.
    `mqar` has more keys, and distances between the queries as published.

    pairs: number of pairs of a key and a value, up to 52.
    queries: number of queried keys; None for all.

    Errors: ValueError if a size is out of range.
    Source: Ba et al., 2016, arXiv:1610.06258, section 4.1; several queries: Arora et al., 2023, arXiv:2312.04927.
    """

    pairs: int = 8
    queries: int | None = None

    def __post_init__(self) -> None:
        check_whole_between("pairs", self.pairs, 1, len(LETTERS))
        if self.queries is not None:
            check_whole_between("queries", self.queries, 1, self.pairs)

    @property
    def width(self) -> int:
        return 2 * self.pairs + 1 + 2 * (self.queries or self.pairs)

    @property
    def chance_accuracy(self) -> float:
        return 1 / len(DIGITS)

    def row(self, rng: Generator) -> TaskRow:
        keys, values = (draw_symbols(LETTERS, self.pairs, rng, replace=False), draw_symbols(DIGITS, self.pairs, rng))
        listed = b"".join(bytes(pair) for pair in zip(keys, values, strict=True)) + b"|"
        queried = rng.permutation(self.pairs)[: self.queries]
        return ask_listed(listed, ((keys[n : n + 1], values[n : n + 1]) for n in queried))


EXAMPLES = (Recall, lambda: Recall(4, 1), lambda: Recall(30, queries=3))
