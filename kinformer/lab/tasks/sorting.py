"""Sorting: the letters of a word in the order of the alphabet."""

from dataclasses import dataclass
from math import comb

from kinformer.core.task import LETTERS
from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class Sorting(Words):
    """A word, a bar, its letters in order: `hbdbh|bbdhh`. Letters may repeat; small ones come before capitals.

    Choose it to see whether a model counts: which letter comes next hangs on all of the word, and on how many of each
    have been written. Guessing scores the likeliest letter of each place, by default 0.45.

    length: of the word.
    symbols: how many different ones there are, letters, up to 52.

    Errors: ValueError for sizes without a meaning. Source: Graves et al., 2014, arXiv:1410.5401, section 4.5 (with
    priorities); as here: Vinyals et al., 2015, arXiv:1511.06391, section 5.1 (of numbers).
    """

    @property
    def chance_accuracy(self) -> float:
        return sum(max(self._shares(place)) for place in range(self.length)) / self.length

    def _shares(self, place: int) -> list[float]:
        """How often each letter stands at a place of the answer: at most n where so many of the word's are."""
        least = [
            sum(
                comb(self.length, k) * (n / self.symbols) ** k * (1 - n / self.symbols) ** (self.length - k)
                for k in range(place + 1, self.length + 1)
            )
            for n in range(self.symbols + 1)
        ]
        return [after - before for before, after in zip(least[:-1], least[1:], strict=True)]

    def answer(self, word: bytes) -> bytes:
        return bytes(sorted(word, key=LETTERS.index))


EXAMPLES = (Sorting, lambda: Sorting(5, 30))
