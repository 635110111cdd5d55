"""Findings: sentences that say how a part breaks a law, with the smallest example that shows it."""

from collections.abc import Callable, Iterator
from typing import Any


class Broken(AssertionError):
    """Raised if a part breaks a law (a property that every part is tested for).

    The text is the finding: a sentence that says how. Helpers of a law raise this error, and the function `findings`
    yields its text.
    """


class Unjudged(Exception):
    """Raised by a law (a property that every part is tested for) that cannot be tested on a part.

    The text is the reason, for example that the part has no decoding state. Such a test never counts as a pass.
    """


def findings(attempt: Callable[..., None], *args: Any) -> Iterator[str]:
    """Call a test, and yield the text of its error `Broken` if the law does not hold.

    attempt: the test: a function that raises Broken if the law does not hold.
    args: arguments of the test.
    """
    try:
        attempt(*args)
    except Broken as broken:
        yield str(broken)


def find_smallest(attempt: Callable[..., None], length: int, *rest: Any) -> Iterator[str]:
    """Call a test with a length; if it fails, yield the error text for the shortest length that fails.

    If the test passes at `length`, no shorter length is tried and nothing is yielded.

    attempt: the test: a function of a length that raises Broken if the law does not hold.
    length: the length to try first, in tokens or positions.
    rest: further arguments of the test.
    """
    for sentence in findings(attempt, length, *rest):
        shorter = (findings(attempt, less, *rest) for less in range(2, length))
        yield next((smaller for findings_at in shorter for smaller in findings_at), sentence)
