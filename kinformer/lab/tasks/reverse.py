"""Reverse: a word is written backwards."""

from dataclasses import dataclass

from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class Reverse(Words):
    """A word, a bar, and the word backwards: `abcd|dcba`.

    Choose it if copying at one distance is too easy. The symbol to write is further back at each position, so no fixed
    distance and no window is enough. Guessing scores 1 / symbols, by default 0.125.

    length: number of letters of the word.
    symbols: number of different letters, up to 52.

    Errors: ValueError if a size is out of range.
    Source: Grefenstette et al., 2015, arXiv:1506.02516, section 4.1; Dehghani et al., 2018, arXiv:1807.03819, section
    3.3.
    """

    def answer(self, word: bytes) -> bytes:
        return word[::-1]


EXAMPLES = (Reverse, lambda: Reverse(5, 20))
