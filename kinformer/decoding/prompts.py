"""Prompts: beginnings of texts of a data split, and the true continuations."""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Prompts(NamedTuple):
    """Beginnings of texts, as tokens, with the true continuations.

    prompts: beginning of each text; empty for a model that reads a source.
    references: true continuation of each text.
    tokens: length of the longest reference.
    sources: source of each text, if the model reads pairs.
    by_place: True if a generated text is compared with its reference position by position, as for synthetic tasks.
    """

    prompts: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]
    tokens: int
    sources: Sequence[Sequence[int]] | None = None
    by_place: bool = False


def draw_places(count: int, total: int, name: str) -> list[int]:
    """Choose `count` of `total` texts at random without repetition, always the same; return their indices.

    A text is a place in running text, or a pair. Statistical guarantees about the chosen texts need random places:
    evenly spaced ones could coincide with repetitions in the data.

    count: number of texts to choose.
    total: number of texts in the data.
    name: name of the texts in the error message.

    Errors: ValueError if `count` is below 1 or above `total`.
    """
    if not 1 <= count <= total:
        raise ValueError(f"{count:,} {name} were requested, but there are {total:,}; ask for fewer, or give more data")
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].tolist()
