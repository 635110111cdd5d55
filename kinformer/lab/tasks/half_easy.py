"""Half easy: letters that point to letters, followed step by step, and of each that is reached its capital."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import LETTERS, Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class HalfEasy(Task):
    """Letters that name places, then for each place the letter that it leads to, and its capital: `cab|bBcCaA`.

    Choose it to see whether a model spends less on what is easy. Every second symbol is the capital of the one before,
    which takes no look at the row. The others take one look after the other: the first letter names a place, the letter
    there the next one (`c` the third), and after `hops` letters the last of them is written. Guessing scores the place
    itself, where most paths lead back to, by default 0.31.

    length: places, which the first letters of the alphabet name, 2 to 26.
    hops: letters that are followed; 1 is a copy.

    Errors: ValueError for sizes without a meaning. Source: of this library, for tokens of unlike difficulty, with which
    Schuster et al., 2022, arXiv:2207.07061, begin.
    """

    length: int = 6
    hops: int = 2

    def __post_init__(self) -> None:
        check_whole_between("length", self.length, 2, len(LETTERS) // 2)
        check_at_least("hops", self.hops, 1)

    @property
    def width(self) -> int:
        return 3 * self.length + 1

    def row(self, rng: Generator) -> TaskRow:
        names = LETTERS[: self.length]
        letters = draw_symbols(names, self.length, rng)
        answer = b""
        for place in range(self.length):
            for _ in range(self.hops):
                letter = letters[place : place + 1]
                place = names.index(letter)
            answer += letter + letter.upper()
        return TaskRow([(letters + b"|", answer)])


EXAMPLES = (HalfEasy, lambda: HalfEasy(4, hops=3))
