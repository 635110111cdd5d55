"""Prompts: texts of a split to go on from, and what stood there."""

from collections.abc import Sequence
from typing import NamedTuple

import torch


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


def draw_places(count: int, most: int, name: str) -> list[int]:
    """So many of `most` places, drawn, none twice: always the same. ValueError where they are fewer, or none is wanted.

    What is proven of texts is proven of draws: places that are chosen evenly fall in with what repeats itself.
    """
    if not 1 <= count <= most:
        raise ValueError(f"{count:,} {name} are wanted, and {most:,} are there; ask for fewer, or give more data")
    return torch.randperm(most, generator=torch.Generator().manual_seed(0))[:count].tolist()
