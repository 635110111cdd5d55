"""Reverse: a word is written backwards."""

from dataclasses import dataclass

from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class Reverse(Words):
    """A word, a bar, the word from its end: `abcd|dcba`. Choose it where copying at one distance would be too easy.

    The symbol to write stands ever further back, so no fixed distance and no window serves. Guessing scores
    1 / symbols, by default 0.125.

    length: of the word.
    symbols: how many different ones there are, letters, up to 52.

    Errors: ValueError for sizes without a meaning. Source: Grefenstette et al., 2015, arXiv:1506.02516, section 4.1;
    Dehghani et al., 2018, arXiv:1807.03819, section 3.3.
    """

    def answer(self, word: bytes) -> bytes:
        return word[::-1]


EXAMPLES = (Reverse, lambda: Reverse(5, 20))
