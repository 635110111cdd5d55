"""Associative recall: pairs of a key and a value are given, then keys, and each asks for its value."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_whole_between
from kinformer.core.task import DIGITS, LETTERS, Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class Recall(Task):
    """Letters with their digits, then some of the letters again: `a3c7k1|c7a3`, where 7 and 3 are asked for.

    Choose it to compare mechanisms: softmax attention looks a key up, and what keeps a state of fixed size loses pairs
    once they are more than it holds. No key comes twice; those asked for are drawn among them, none twice. Guessing
    scores 0.1, and the likeliest value of a row more where there are few pairs.

    pairs: of a key and a value, up to 52.
    queries: how many keys ask; all of them unless given.

    Errors: ValueError for sizes without a meaning. Source: Ba et al., 2016, arXiv:1610.06258, section 4.1; several
    queries: Arora et al., 2023, arXiv:2312.04927.
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
        pieces = [(keys[n : n + 1], values[n : n + 1]) for n in queried]
        return TaskRow([(listed + pieces[0][0], pieces[0][1]), *pieces[1:]])


EXAMPLES = (Recall, lambda: Recall(4, 1), lambda: Recall(30, queries=3))
