"""Prompts: beginnings of texts of a split, and the true continuations."""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Prompts(NamedTuple):
    """Beginnings of texts, as tokens, with the true continuations.

    prompts: beginning of each text; empty for a model that reads a source.
    references: true continuation of each text.
    tokens: length of the longest reference.
    sources: source of each text, if the model reads pairs.
    by_place: True if answers are scored place by place, as for tasks.
    """

    prompts: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]
    tokens: int
    sources: Sequence[Sequence[int]] | None = None
    by_place: bool = False


def draw_places(count: int, total: int, name: str) -> list[int]:
    """Draw `count` of `total` places at random without replacement, always the same ones.

    Guarantees for random texts need random draws: evenly spaced places could align with repeating data.

    count: number of places to draw.
    total: number of places.
    name: name of the places in the message.

    Errors: ValueError if `count` is below 1 or above `total`.
    """
    if not 1 <= count <= total:
        raise ValueError(f"{count:,} {name} were requested, but there are {total:,}; ask for fewer, or give more data")
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].tolist()
