"""Needle: find a number that stands somewhere in a long row of words."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.task import DIGITS, Task, TaskRow, draw_symbols

HAY = (b"oats", b"straw", b"reeds", b"grass", b"clover", b"wheat", b"rye", b"moss")
BEFORE = b"key="


@dataclass(frozen=True)
class Needle(Task):
    """Words with `key=4071 ` among them, and `key=` at the end, which asks for the digits.

    Choose it to see how far back a model finds one detail among irrelevant words. `depth` sets its position, so
    accuracy can be plotted against length and depth. Guessing scores 0.1 for each digit.

    length: number of symbols of a row, including the answer.
    digits: number of digits of the number to find.
    depth: position of the number, from 0 for the beginning to 1 for just before the question; None for a random
        position.

    Errors: ValueError if a size is out of range, or if rows are too short for the number.
    Source: Mohtashami and Jaggi, 2023, arXiv:2305.16300, section 4.2 (a pass key in a long text).
    """

    length: int = 128
    digits: int = 4
    depth: float | None = None

    def __post_init__(self) -> None:
        check_at_least("digits", self.digits, 1)
        check_at_least("length", self.length, 2 * (self.digits + len(BEFORE)) + 1)
        if self.depth is not None:
            check_in_range("depth", self.depth, 0, 1)

    @property
    def width(self) -> int:
        return self.length

    @property
    def chance_accuracy(self) -> float:
        return 1 / len(DIGITS)

    def row(self, rng: Generator) -> TaskRow:
        number = draw_symbols(DIGITS, self.digits, rng)
        needle = BEFORE + number + b" "
        hay_length = self.length - len(needle) - len(BEFORE) - self.digits
        hay = self._hay(hay_length, rng)
        places = [0, *(n + 1 for n, letter in enumerate(hay) if letter == ord(" "))]  # only between words
        if not hay.endswith(b" "):
            places.append(hay_length)
        share = rng.random() if self.depth is None else self.depth
        at = places[round(share * (len(places) - 1))]
        return TaskRow([(hay[:at] + needle + hay[at:] + BEFORE, number)])

    def _hay(self, length: int, rng: Generator) -> bytes:
        """Return words and spaces of the given length, with a space at the end; the last word may be cut."""
        words = b""
        while len(words) < length:
            words += HAY[int(rng.integers(len(HAY)))] + b" "
        return words[: length - 1] + b" " if length else b""


EXAMPLES = (Needle, lambda: Needle(64, 2, depth=0.5))
