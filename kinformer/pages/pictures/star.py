"""Tokens on a ring around a relay: whom each reads."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Context
from kinformer.nn.depth.star import StarRounds
from kinformer.pages.pictures.support.panel import NARROW, Picture, grid, layers_of_kinds, span

KINDS = ("the relay reads and is read", "neighbours on the ring, the token itself and its embedding")
WINDOW = 3


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """One round of each StarRounds of an example, the relay first."""
    for layer in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(layer, StarRounds):
            size, step = span(WINDOW, length, NARROW)
            ring = layer.around(Context.of(torch.zeros(1, size, 1)))
            relay, beside = torch.zeros(2, size + 1, size + 1, dtype=torch.bool)
            relay[0] = relay[:, 0] = True
            at = torch.arange(size)
            for other in (at, ring.before[0], ring.after[0]):
                beside[1 + at[other >= 0], 1 + other[other >= 0]] = True
            note = f"the relay, then {size} tokens" + (f"; a cell is {step} by {step}" if step > 1 else "")
            panel = grid("", layers_of_kinds([relay, beside & ~relay]), step)
            yield Picture("one round of a star", KINDS, (panel,), note=note)
