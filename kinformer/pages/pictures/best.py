"""Keys that score best: of those that a query may read, the few that it reads."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.pattern import pairs
from kinformer.pages.pictures.support.layers import attentions, best_of, calls, clustered, joined, weighed
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, layers_of_kinds

KINDS, TINY, RUN = ("read", "scored and not read"), 1e-9, 128


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the lowest layer that reads its best keys, on random tokens of five kinds."""
    for place, layer in attentions(example).items():
        if (k := best_of(layer.mechanism)) is None:
            continue
        size = min(length or CELLS, RUN)
        (call,) = calls(layer, clustered(size, layer.d))
        at = torch.arange(size)[None, None]
        may, read = pairs(call.pattern, at, at, range(1))[0, 0], weighed(call)[0].abs() > TINY
        where = joined([place])
        caption = f"the best keys of each query{', ' + where if where else ''}, head 0"
        panel = grid("", layers_of_kinds([read, may & ~read]), -(-size // CELLS))
        yield Picture(caption, KINDS, (panel,), note=f"the {k} best; tokens of five kinds, weights as they start")
        return
