"""Landmarks: which tokens each one is the mean of, and how much a query then takes of each token."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d

from kinformer.core.layer import Context
from kinformer.nn.mechanisms.landmarks import ThroughLandmarks
from kinformer.pages.pictures.support.layers import attentions, clustered, joined
from kinformer.pages.pictures.support.panel import Panel, Picture, shades

CELLS, OF_EACH = 24, 3  # cells of a side at most; tokens of a landmark


@torch.no_grad()
def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the first layer that reads through landmarks, of its first head."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, ThroughLandmarks):
            continue
        size = length or max(CELLS, OF_EACH * getattr(mechanism, "landmarks", 0))
        x = clustered(size, layer.d)
        ctx = Context.of(x)
        queries, keys = layer.projection.both(x, ctx.pos)
        shares = mechanism.segments(ctx.by_head, ctx).means(torch.eye(size)[None, None])[0, 0]
        every = torch.eye(size).expand(1, keys.v.shape[1], -1, -1)  # each value a vector of its own: the answer tells
        queries, keys = queries._replace(pos=ctx.by_head), keys._replace(v=every, pos=ctx.by_head)
        read = mechanism(queries, keys, None, ctx).y.y[0, 0].abs()
        cell = -(-size // CELLS)
        panels = (_shaded("means", shares, cell), _shaded("read", read, cell))
        caption = f"{type(mechanism).__name__}{', ' + joined([place]) if place else ''}, head 0, before any training"
        note = "means: the tokens (column) of each landmark (line); read: what a query (line) takes of each, unsigned"
        thin = f"; a cell is {cell} by {cell}" if cell > 1 else ""
        yield Picture(caption, (), panels, line="line", column="column", note=note + thin)
        return


def _shaded(title: str, numbers: Float[Tensor, "R C"], cell: int) -> Panel:
    """The means of square cells, the largest of them dark."""
    level = avg_pool2d(numbers[None], cell, ceil_mode=True, count_include_pad=False)[0]
    lines, columns = ([str(n * cell) for n in range(count)] for count in level.shape)
    return shades(title, level / level.amax(), lines, columns)
