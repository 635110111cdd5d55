"""Findings: what a law says of a part that breaks it, with the smallest example that does."""

from collections.abc import Callable, Iterator
from typing import Any


class Broken(AssertionError):
    """A law does not hold; the text is the finding. What helpers of a law raise, and `found` and `smallest` give on."""


class Unjudged(Exception):
    """There is nothing that the law could look at; the text says why. Raised by `judge`, never taken for a pass."""


def found(attempt: Callable[..., None], *given: Any) -> Iterator[str]:
    """What an attempt finds: a sentence, or nothing."""
    try:
        attempt(*given)
    except Broken as broken:
        yield str(broken)


def smallest(attempt: Callable[..., None], length: int, *rest: Any) -> Iterator[str]:
    """What an attempt finds at a length; where it finds something, what it says at the shortest length that does."""
    for sentence in found(attempt, length, *rest):
        shorter = (found(attempt, less, *rest) for less in range(2, length))
        yield next((smaller for one in shorter for smaller in one), sentence)
