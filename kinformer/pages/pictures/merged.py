"""Reads that are merged: which keys are read by which mechanism."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from kinformer.core.keyed import KeyValueMechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.patterns.band import Band
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, layers_of_kinds, span
from kinformer.pages.pictures.support.spelled import longest, spelled


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Each Merged of an example whose parts say what they read, once where several read alike."""
    seen = set()
    for merged in example.modules() if isinstance(example, nn.Module) else ():
        sets = [_read(part) for part in merged.parts] if isinstance(merged, Merged) else []
        known = tuple(one for one in sets if one is not None)
        if not known or len(known) < len(sets) or known in seen:
            continue
        seen.add(known)
        size, step = span(max(longest(pattern) for _, pattern in known), length, CELLS)
        panel = grid("", layers_of_kinds([pattern.matrix(size) for _, pattern in known]), step)
        note = f"{size} positions; a cell is {step} by {step}" if step > 1 else ""
        yield Picture("near keys and far ones, in one softmax", tuple(name for name, _ in known), (panel,), note=note)


def _read(part: nn.Module) -> tuple[str, Pattern] | None:
    if isinstance(part, Delayed):
        return f"estimated from {part.by} tokens back on", Causal() & ~Band(part.by - 1)
    return (f"exactly: {spelled(part.pattern)}", part.pattern) if isinstance(part, KeyValueMechanism) else None
