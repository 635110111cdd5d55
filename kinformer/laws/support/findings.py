"""Findings: what a law says of a part that breaks it, with the smallest example that does."""

from collections.abc import Callable, Iterator
from typing import Any


class Broken(AssertionError):
    """A law does not hold; the text is the finding. Helpers of a law raise it; `findings` yields its text."""


class Unjudged(Exception):
    """There is nothing that the law could look at; the text says why. Raised by `judge`, never taken for a pass."""


def findings(attempt: Callable[..., None], *args: Any) -> Iterator[str]:
    """What an attempt finds: a sentence, or nothing."""
    try:
        attempt(*args)
    except Broken as broken:
        yield str(broken)


def find_smallest(attempt: Callable[..., None], length: int, *rest: Any) -> Iterator[str]:
    """What an attempt finds at a length; where it finds something, what it says at the shortest length that does."""
    for sentence in findings(attempt, length, *rest):
        shorter = (findings(attempt, less, *rest) for less in range(2, length))
        yield next((smaller for findings_at in shorter for smaller in findings_at), sentence)
