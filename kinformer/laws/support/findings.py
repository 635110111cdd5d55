"""Findings: sentences about a part that breaks a law, with the smallest example that shows it."""

from collections.abc import Callable, Iterator
from typing import Any


class Broken(AssertionError):
    """A law does not hold; the text is the finding.

    Helpers of a law raise this error, and `findings` yields its text.
    """


class Unjudged(Exception):
    """A law has nothing to judge; the text is the reason.

    `judge` raises this error, and it never counts as a pass.
    """


def findings(attempt: Callable[..., None], *args: Any) -> Iterator[str]:
    """Yield the finding of an attempt, if it has one.

    attempt: a function that raises Broken if the law does not hold.
    args: its arguments.
    """
    try:
        attempt(*args)
    except Broken as broken:
        yield str(broken)


def find_smallest(attempt: Callable[..., None], length: int, *rest: Any) -> Iterator[str]:
    """Yield the finding of an attempt at the shortest length that has one.

    Nothing is yielded if there is no finding at `length`.

    attempt: a function of a length that raises Broken if the law does not hold.
    length: the length to try first.
    rest: further arguments of the attempt.
    """
    for sentence in findings(attempt, length, *rest):
        shorter = (findings(attempt, less, *rest) for less in range(2, length))
        yield next((smaller for findings_at in shorter for smaller in findings_at), sentence)
