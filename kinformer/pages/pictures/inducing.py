"""Inducing points and the elements of a set: who reads whom in an ISAB, and seeds that read a set."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.nn.blocks.isab import ISAB
from kinformer.nn.poolers.pma import PMA
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, layers_of_kinds, span

POINTS = ("points read the elements", "elements read what the points made of them")
SEEDS = ("seeds read the elements",)


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The first ISAB and the first PMA of an example; a set has no order, so columns are elements in any."""
    inside = list(example.modules()) if isinstance(example, nn.Module) else []
    for layer in [one for one in inside if isinstance(one, ISAB)][:1]:
        few = layer.points
        size, step = _elements(few, length)
        ask, answer = torch.zeros(2, few + size, few + size, dtype=torch.bool)
        ask[:few, few:], answer[few:, :few] = True, True
        note = f"{few} points, then {size} elements"
        yield _picture("one ISAB", POINTS, [ask, answer], note, step)
    for pooling in [one for one in inside if isinstance(one, PMA)][:1]:
        size, step = _elements(pooling.vectors, length)
        read = torch.ones(pooling.vectors, size, dtype=torch.bool)
        yield _picture("pooling by multihead attention (PMA)", SEEDS, [read], f"seeds by {size} elements", step)


def _elements(few: int, length: int | None) -> tuple[int, int]:
    """How many elements to draw beside a few points, and how many of both make a cell."""
    size, step = span(few, None if length is None else length + few, CELLS)
    return size - few, step


def _picture(caption: str, kinds: tuple[str, ...], masks: list[Tensor], note: str, step: int) -> Picture:
    told = note + (f"; a cell is {step} by {step}" if step > 1 else "")
    return Picture(caption, kinds, (grid("", layers_of_kinds(masks), step),), note=told)
