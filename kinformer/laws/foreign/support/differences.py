"""Comparisons of logits, and the shortest row at which a model breaks a law."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.support.findings import Broken, findings

BOUND = 1e-4  # largest difference, as a share of the spread: a model may compute some steps in float32
SHORTER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # lengths to try for a smaller example


class Difference(NamedTuple):
    """The largest difference between two tensors of logits [B T V].

    size: the largest absolute difference; infinite if a number is NaN.
    row: its row.
    column: its position in the row.
    spread: standard deviation of the expected logits.
    """

    size: float
    row: int
    column: int
    spread: float

    @property
    def share(self) -> float:
        """The difference divided by the spread."""
        return self.size / self.spread

    def __str__(self) -> str:
        return f"{self.size:.2g} (the logits' standard deviation is {self.spread:.2g})"


def difference(actual: Tensor, expected: Tensor) -> Difference:
    """Return the largest difference between logits [B T V].

    actual: the logits to test.
    expected: the logits to compare with.
    """
    actual, expected = actual.detach().double(), expected.detach().double()
    error = torch.where(actual == expected, 0.0, (actual - expected).abs()).nan_to_num(nan=math.inf)
    error = error.amax(-1)
    row, column = (int(n) for n in torch.unravel_index(error.argmax(), error.shape))
    return Difference(float(error[row, column]), row, column, spread(expected))


def spread(logits: Tensor) -> float:
    """Return the standard deviation of logits, without the very small logits of excluded tokens."""
    usual = logits.double().nan_to_num().clamp(-1e4, 1e4)
    return max(float(usual.std()), 1e-3 * float(usual.abs().max()), 1e-12)


def find_shortest(check: Callable[..., None], box: BlackBox, longest: int, *rest: Any) -> Iterator[str]:
    """Call a test; if it fails, yield the text for the shortest row that fails, of about 20 rows.

    check: the test: a function of a length, the model and `rest` that raises Broken.
    box: the model.
    longest: the length to try first.
    rest: further arguments.
    """
    sentence = next(findings(check, longest, box, *rest), None)
    if sentence is None:
        return
    passing, failing = 1, longest
    for length in SHORTER[:: 3 if box.is_large else 1]:
        if length >= failing:
            break
        if (shorter := _finding(check, length, box, *rest)) is not None:
            failing, sentence = length, shorter
            break
        passing = length
    while failing - passing > 1:  # bisection
        middle = (passing + failing) // 2
        if (shorter := _finding(check, middle, box, *rest)) is not None:
            failing, sentence = middle, shorter
        else:
            passing = middle
    yield sentence


def _finding(check: Callable[..., None], *arguments: Any) -> str | None:
    """Return the finding of a test; None if it passes, and if the model does not take such short rows."""
    with suppress(Exception):
        return next(findings(check, *arguments), None)
    return None


def check_near(actual: Tensor, expected: Tensor, sentence: Callable[[Difference], str], bound: float = BOUND) -> None:
    """Raise Broken unless logits agree.

    actual: the logits to test [B T V].
    expected: the logits to compare with.
    sentence: function that makes the finding from the largest difference.
    bound: largest difference, as a share of the spread.
    """
    if actual.shape != expected.shape:
        raise Broken(f"the logits have shape {list(actual.shape)}, expected {list(expected.shape)}")
    largest = difference(actual, expected)
    if largest.share > bound:
        raise Broken(sentence(largest))
