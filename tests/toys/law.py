"""Law named: a pattern prints as something that can be read again."""

from collections.abc import Iterator

from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse

SAYS = "its text makes it again"
OVER = "pattern"


def judge(pattern: Pattern) -> Iterator[str]:
    """What `parse` makes of its repr is equal to it; patterns of a batch have no text."""
    if not pattern.tensors() and parse(repr(pattern)) != pattern:
        yield f"{pattern!r} is read again as {parse(repr(pattern))!r}"
