"""Copy: a word is written again, symbol by symbol."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class Copy(Words):
    """A word, a bar, and the word again: `hbbd|hbbd`.

    Choose it as the first task that a new model must learn. The model must look at one position of the word after the
    other, or keep the whole word in its state. Guessing scores 1 / symbols, by default 0.125.

    length: number of letters of the word.
    symbols: number of different letters, up to 52.
    gap: number of dots between the word and the bar. With dots it is the copying memory problem.

    Errors: ValueError if a size is out of range.
    Source: Graves et al., 2014, arXiv:1410.5401, section 4.1; with a gap: Hochreiter and Schmidhuber, 1997,
    doi:10.1162/neco.1997.9.8.1735, and Arjovsky et al., 2015, arXiv:1511.06464.
    """

    gap: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("gap", self.gap, 0)

    @property
    def separator(self) -> bytes:
        return b"." * self.gap + b"|"

    def answer(self, word: bytes) -> bytes:
        return word


EXAMPLES = (Copy, lambda: Copy(4, 20, gap=10))
