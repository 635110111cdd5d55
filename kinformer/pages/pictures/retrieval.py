"""Keys that are searched: what a query reads whole, and which of the far ones it finds."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.pattern import pairs
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.pages.pictures.support.layers import attentions, calls, clustered, joined, weighed
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, layers_of_kinds, span

KINDS = ("read whole", "found among the far", "searched and not found")
TINY, RUN = 1e-9, 128  # from which length on nothing is run, and what is found is not drawn


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of each Retrieval, of its first head."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, Retrieval):
            continue
        size, step = span((mechanism.length + mechanism.cache + mechanism.memory) * 2 // 3, length, CELLS)
        at = torch.arange(size)[None, None]
        near, may = (pairs(one, at, at, range(1))[0, 0] for one in (mechanism.near, mechanism.pattern))
        found, kinds = torch.zeros_like(near), (KINDS[0], KINDS[1], "searched")
        if size <= RUN:
            found, kinds = weighed(calls(layer, clustered(size, layer.d))[0])[0].abs() > TINY, KINDS
        where = joined([place])
        caption = f"Retrieval{', ' + where if where else ''}, head 0: near keys, and the best of the far ones"
        note = f"the {mechanism.k} best; "
        note += f"{size} positions; a cell is {step} by {step}" if step > 1 else "tokens of five kinds"
        panel = grid("", layers_of_kinds([near, found & ~near, may & ~near]), step)
        yield Picture(caption, kinds, (panel,), note=note)
