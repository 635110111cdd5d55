"""ListOps: the value of a nested expression of lists of digits, which is one digit."""

from dataclasses import dataclass

from numpy.random import Generator

from kinformer.core.checks import check_at_least
from kinformer.core.task import DIGITS, Task, TaskRow

OPERATORS = ("MIN", "MAX", "MED", "SM")
NESTED = 0.25  # probability that an argument is a list


@dataclass(frozen=True)
class Listops(Task):
    """Nested lists with the operators minimum, maximum, median or sum modulo 10: `[MAX29[MIN47]0]=9`.

    Choose it to test parsing: a distant bracket decides what a digit contributes. An argument is a list with
    probability 1/4 and else a digit. A list has 2 to `arguments` arguments, each number equally likely, and any of the
    four operators. Expressions that are too short or too long, and digits without an operator, are never drawn. The
    median of an even number of digits is the mean of the middle two, rounded down. Guessing scores about 0.12.

    shortest, longest: minimum and maximum number of bytes of an expression.
    arguments: maximum number of arguments of a list; 5 in the paper, 10 in the Long Range Arena.
    deepest: maximum depth of nested lists, counting the digits as a level; 20 in the paper, 10 in the Arena.

    Errors: ValueError if a size is out of range.
    Source: Nangia and Bowman, 2018, arXiv:1804.06028, section 2; with limits of length: Tay et al., 2020,
    arXiv:2011.04006, section 2.2.1 (500 to 2,000 tokens).

    Differences: the published rows count an operator with its bracket as one token, and have spaces.
    """

    shortest: int = 8
    longest: int = 60
    arguments: int = 5
    deepest: int = 20

    def __post_init__(self) -> None:
        check_at_least("shortest", self.shortest, 6)
        check_at_least("longest", self.longest, max(self.shortest, 8))
        check_at_least("arguments", self.arguments, 2)
        check_at_least("deepest", self.deepest, 2)

    @property
    def width(self) -> int:
        return self.longest + 2

    def row(self, rng: Generator) -> TaskRow:
        while True:
            text = bytearray()
            value = self._list(text, 1, rng)
            if self.shortest <= len(text) <= self.longest:
                return TaskRow([(bytes(text) + b"=", DIGITS[value : value + 1])])

    def _list(self, text: bytearray, depth: int, rng: Generator) -> int:
        """Write a list to `text` and return its value; stop early if the expression has become too long."""
        name = OPERATORS[int(rng.integers(len(OPERATORS)))]
        text += f"[{name}".encode()
        values = []
        for _ in range(int(rng.integers(2, self.arguments + 1))):
            values.append(self._argument(text, depth + 1, rng))
            if len(text) > self.longest:
                break
        text += b"]"
        return _apply_operator(name, values)

    def _argument(self, text: bytearray, depth: int, rng: Generator) -> int:
        if depth < self.deepest and rng.random() < NESTED:
            return self._list(text, depth, rng)
        value = int(rng.integers(10))
        text += DIGITS[value : value + 1]
        return value


def _apply_operator(name: str, values: list[int]) -> int:
    """Return the value of an operator for its arguments."""
    if name == "MIN":
        return min(values)
    if name == "MAX":
        return max(values)
    if name == "SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


EXAMPLES = (Listops, lambda: Listops(12, 80, arguments=10, deepest=3))
