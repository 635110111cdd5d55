"""Noisy in-context recall: in-context recall with irrelevant symbols between the pairs."""

from collections.abc import Iterator
from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_probability
from kinformer.core.task import draw_symbols
from kinformer.lab.tasks.in_context_recall import InContextRecall

NOISE = b"!#$%&*+-/:;<=>?@"


@dataclass(frozen=True)
class NoisyInContextRecall(InContextRecall):
    """Pairs of a letter and a digit among pairs of irrelevant symbols: `a3#?c7a3=!c7`.

    Digits of repeated letters are the answers, as in `in_context_recall`. Choose it to see whether a model ignores
    symbols that never matter. The noise has 16 symbols of its own. Guessing scores 1 / values, by default 0.125.

    A model that ignores keys and answers with a random one of the different values so far in the row scores 0.23. With
    8 pairs and 2 keys, as in the arena, it scores 0.62.

    pairs: number of pairs in a row, more than `keys`.
    keys: number of different letters, up to 52. Each letter occurs at least once; the remaining pairs draw
        letters at random.
    values: number of different digits, up to 10.
    noise: share of noise in the row, from 0 to below 1. It is rounded to whole pairs; a share above 0 that gives no
        pair of noise is refused.

    Errors: ValueError if a size is out of range.
    Source: Poli et al., 2024, arXiv:2403.17844, noisy in-context recall of MAD (a share of 0.2 to 0.8).

    Differences: as in `in_context_recall`. Each row also has the same share of noise, which is a mean in MAD.
    """

    noise: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("noise", self.noise)
        if self.noise and not self._noise_pairs:
            raise ValueError(
                f"noise={self.noise}: give a number above {1 / (2 * self.pairs + 1):.2g}, or 0 for no noise; it gives "
                f"no pair of noise among {self.pairs} pairs"
            )

    @property
    def _noise_pairs(self) -> int:
        return round(self.pairs * self.noise / (1 - self.noise))

    @property
    def width(self) -> int:
        return 2 * (self.pairs + self._noise_pairs)

    def _draw_pairs(self, rng: Generator) -> Iterator[tuple[bytes, bytes]]:
        pairs = super()._draw_pairs(rng)
        before_last = rng.permutation([True] * (self.pairs - 1) + [False] * self._noise_pairs)
        for is_pair in (*before_last, True):
            yield next(pairs) if is_pair else (draw_symbols(NOISE, 2, rng), b"")


EXAMPLES = (NoisyInContextRecall, lambda: NoisyInContextRecall(6, 4, noise=0.6))
