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


def draw_places(count: int, total: int, name: str) -> list[int]:
    """So many of `total` places, drawn, none twice: always the same. ValueError for fewer, or if none is asked for.

    What is proven of texts is proven of draws: places that are chosen evenly fall in with what repeats itself.
    """
    if not 1 <= count <= total:
        raise ValueError(f"{count:,} {name} are wanted, and {total:,} are there; ask for fewer, or give more data")
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].tolist()
