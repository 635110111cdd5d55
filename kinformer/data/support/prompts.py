"""Prompts: texts of a split to go on from, and what stood there."""

from collections.abc import Sequence
from typing import NamedTuple


class Prompts(NamedTuple):
    """Texts that a model goes on from, as tokens, each with what the data says comes next.

    prompts: what each begins with; of what reads a source nothing.
    references: what came next.
    tokens: how many the longest of these has.
    sources: what each is written from, where a model reads pairs.
    by_place: an answer is right place by place, as a task's is.
    """

    prompts: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]
    tokens: int
    sources: Sequence[Sequence[int]] | None = None
    by_place: bool = False


def spread(count: int, most: int, what: str) -> list[int]:
    """So many of `most` places, evenly from the first on; ValueError where they are fewer, or none is wanted."""
    if not 1 <= count <= most:
        raise ValueError(f"{count:,} {what} are wanted, and {most:,} are there; ask for fewer, or give more data")
    return [most * n // count for n in range(count)]
