"""Selective copying: letters stand among dots, and are written again in their order without the dots."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import TaskRow
from kinformer.lab.tasks.support.word_tasks import Words


@dataclass(frozen=True)
class SelectiveCopying(Words):
    """Letters at random positions among dots, a bar, and the letters without dots: `h..b.bd...|hbbd`.

    Choose it to see whether a model remembers only what matters. The distance of a letter to its copy varies, so no
    fixed filter over positions solves it. `copy` with a gap has the dots in one place. Guessing scores 1 / symbols, by
    default 0.125.

    length: number of letters to copy.
    symbols: number of different letters, up to 52.
    dots: number of dots among the letters. All positions are equally likely.

    Errors: ValueError if a size is out of range.
    Source: Gu and Dao, 2023, arXiv:2312.00752, section 4.1.1, after Jing et al., 2017, arXiv:1706.02761; also Poli et
    al., 2024, arXiv:2403.17844, selective copying of MAD (16 of 256 tokens).

    Differences: published models get dots as input while they answer. Models here get their own earlier answers. In MAD
    the last letter stands directly before the bar.
    """

    dots: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("dots", self.dots, 0)

    @property
    def width(self) -> int:
        return super().width + self.dots

    def answer(self, word: bytes) -> bytes:
        return word

    def row(self, rng: Generator) -> TaskRow:
        word = self.letters(self.length, rng)
        letters = iter(word)
        is_letter = rng.permutation([True] * self.length + [False] * self.dots)
        text = bytes(next(letters) if here else ord(".") for here in is_letter)
        return TaskRow([(text + self.separator, self.answer(word))])


EXAMPLES = (SelectiveCopying, lambda: SelectiveCopying(4, 20, dots=30))
