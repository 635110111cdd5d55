"""Blocks that are sorted: which block stands in the place of which, and how much each query takes of each token."""

from collections.abc import Iterator
from typing import Any

from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.pages.pictures.support.layers import attentions, calls, clustered, joined, weighed
from kinformer.pages.pictures.support.panel import Picture, shades

BLOCKS, MOST = 6, 24


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of each Sinkhorn, of its first head."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, Sinkhorn):
            continue
        size = length or BLOCKS * mechanism.block
        (call,) = calls(layer, clustered(size, layer.d))
        blocks = mechanism.blocks_of(call.keys.pos)
        count = -(-size // mechanism.block)
        sort = mechanism.sorting(call.keys.extras["sort"], blocks)[0, 0, :count, :count].detach()
        names, where = [str(n) for n in range(size)], joined([place])
        panels = [shades("sorted", sort, names[:count], names[:count])]
        if size <= MOST:
            panels.append(shades("read", weighed(call)[0].detach().abs(), names, names))
        caption = f"Sinkhorn{', ' + where if where else ''}, head 0: blocks of {mechanism.block}, before any training"
        note = "sorted: how much of block (column) stands in the place of block (line)"
        note += "; read: what a query (line) takes of a token" if size <= MOST else ""
        yield Picture(caption, (), tuple(panels), line="line", column="column", note=note)
