"""Sorting: the letters of a word are written in alphabetical order."""

from dataclasses import dataclass
from math import comb

from kinformer.core.task import LETTERS
from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class Sorting(Words):
    """A word, a bar, and its letters in order: `hbdbh|bbdhh`.

    Letters may repeat; small letters come before capitals. Choose it to see whether a model counts. The next letter
    depends on the whole word, and on how many of each letter are already written. Guessing
    scores 0.45 by default, with the likeliest letter of each position.

    length: number of letters of the word.
    symbols: number of different letters, up to 52.

    Errors: ValueError if a size is out of range.
    Source: Graves et al., 2014, arXiv:1410.5401, section 4.5 (with priorities); as here: Vinyals et al., 2015,
    arXiv:1511.06391, section 5.1 (of numbers).
    """

    @property
    def chance_accuracy(self) -> float:
        return sum(max(self._shares(place)) for place in range(self.length)) / self.length

    def _shares(self, place: int) -> list[float]:
        """Return the probability of each letter at a position of the answer.

        Its letter is among the first n symbols if more than `place` letters of the word are.
        """
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
