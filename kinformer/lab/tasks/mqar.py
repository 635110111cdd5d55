"""Multi-query associative recall (MQAR): pairs are listed, then keys ask for values at random places."""

from dataclasses import dataclass

import numpy
from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_in_range, check_whole_between
from kinformer.core.task import Task, TaskRow, draw_symbols
from kinformer.lab.tasks.support.key_value_rows import KEYS, VALUES

FILLER = b"."


@dataclass(frozen=True)
class Mqar(Task):
    """Keys with their values, then the keys at random places among dots: `a3c7k1c7..k1....a3`.

    Choose it to measure how many pairs a state of fixed size holds. Softmax attention finds any number of pairs.
    `recall` asks the same question in its shortest form, of at most 52 pairs. All keys of a row differ, and each is
    queried at most once.

    Guessing scores 1 / values, by default 0.0625. A model that ignores keys and answers with a value of the row that is
    not yet used scores more. With 16 values, that is 0.56 for 4 pairs, 0.42 for 8, 0.32 for 16 and 0.19 for 64. Fewer
    `queries` than pairs lower these numbers.

    After the pairs, the row has (length - 2 * pairs) / 2 places for a query and its answer. The place g = 1, 2, ... is
    chosen with a probability proportional to g ** (power - 1), without replacement. So most queries come soon after the
    pairs.

    pairs: number of pairs of a key and a value, up to `keys`.
    queries: number of queried keys; None for all.
    length: largest number of symbols of a row, at least 2 * (pairs + queries). Dots after the last answer are left out.
    keys: number of different keys, up to 64.
    values: number of different values, up to 29.
    power: exponent of the power law, from 0 to 1; with 1, all places are equally likely.

    Errors: ValueError if a size is out of range.
    Source: Arora et al., 2023, arXiv:2312.04927, section 3.2, with the power law of the published code; Arora et al.,
    2024, arXiv:2402.18668, for states of different sizes.

    Differences: the published rows draw 4 to 64 pairs from 8,192 tokens, half of them keys, and the values of a row
    differ. Here a symbol is a printable byte, and values may repeat. In the published rows the answer is the training
    label at the key's position; it is not an input. Here the answer follows its key. The published code can replace the
    dots by random tokens, which could form false pairs in an alphabet of this size. It also gives the first drawn place
    to the first pair, so pairs listed first tend to be queried first. Here the order of the queries is independent.
    """

    pairs: int = 8
    queries: int | None = None
    length: int = 64
    keys: int = 64
    values: int = 16
    power: float = 0.01

    def __post_init__(self) -> None:
        check_whole_between("keys", self.keys, 1, len(KEYS))
        check_whole_between("values", self.values, 2, len(VALUES))
        check_whole_between("pairs", self.pairs, 1, self.keys)
        if self.queries is not None:
            check_whole_between("queries", self.queries, 1, self.pairs)
        check_at_least("length", self.length, 2 * (self.pairs + self._queries))
        check_in_range("power", self.power, 0, 1)

    @property
    def _queries(self) -> int:
        return self.queries or self.pairs

    @property
    def width(self) -> int:
        return self.length

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.values

    def row(self, rng: Generator) -> TaskRow:
        keys = draw_symbols(KEYS[: self.keys], self.pairs, rng, replace=False)
        values = draw_symbols(VALUES[: self.values], self.pairs, rng)
        queried = rng.permutation(self.pairs)[: self._queries]
        places = numpy.sort(self._places(rng))
        read = b"".join(bytes(pair) for pair in zip(keys, values, strict=True))
        pieces, free = [], 0
        for n, place in zip(queried, places, strict=True):
            read += 2 * int(place - free) * FILLER
            pieces.append((read + keys[n : n + 1], values[n : n + 1]))
            read, free = b"", place + 1
        return TaskRow(pieces)

    def _places(self, rng: Generator) -> numpy.ndarray:
        """Draw the places of the queries after the pairs."""
        likelihoods = numpy.arange(1, self.width // 2 - self.pairs + 1) ** (self.power - 1.0)
        return rng.choice(len(likelihoods), self._queries, replace=False, p=likelihoods / likelihoods.sum())


EXAMPLES = (Mqar, lambda: Mqar(64, length=256), lambda: Mqar(4, 2, length=40, keys=8, values=4, power=1.0))
