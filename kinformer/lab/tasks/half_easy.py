"""Half easy: follow letters that point to letters, then write each result and its capital."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import LETTERS, Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class HalfEasy(Task):
    """Letters that point to positions, then the letter reached from each and its capital: `cab|bBcCaA`.

    Choose it to see whether a model computes less for easy tokens. Every second symbol of the answer is the capital of
    the symbol before, which needs no look at the letters. The other symbols need several looks in sequence. The first
    letter names a position (`c` is the third), the letter there names the next, and the letter after `hops` looks is
    written. Guessing scores the position itself, because most paths lead back to it; by default 0.31.

    length: number of positions, named by the first letters of the alphabet, 2 to 26.
    hops: letters that are followed; 1 is a copy.

    Errors: ValueError if a size is out of range.
    Source: this library, after the motivation of Schuster et al., 2022, arXiv:2207.07061: tokens differ in difficulty.
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
