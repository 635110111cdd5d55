"""Half easy: letters name positions of letters; the answer has the letters found and their capitals."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_whole_between
from kinformer.core.task import LETTERS, Task, TaskRow, draw_symbols


@dataclass(frozen=True)
class HalfEasy(Task):
    """Letters that name positions, then the letter found from each position and its capital: `cab|bBcCaA`.

    Choose it to see whether a model computes less for easy tokens. A letter names a position: `c` names the third. From
    each position in turn, the model looks at the letter there, then at the position that this letter names, and so on.
    The letter seen in look number `hops` is written. Such a symbol needs several looks in sequence. Every second symbol
    of the answer is easy, because it is the capital of the symbol before. Guessing scores 0.31 by default. The best
    guess is the name of the position itself, because more paths lead back to it than to any other position.

    CALM (Schuster et al., 2022, arXiv:2207.07061) has the same motive: some tokens are easier than others.

    length: number of positions, named by the first letters of the alphabet, 2 to 26.
    hops: number of looks for each letter of the answer; with 1 the answer is a copy of the letters.

    Errors: ValueError if a size is out of range.
    Source: no paper.
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
