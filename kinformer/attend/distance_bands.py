"""banded: what a bias adds to the calls of a plan, by distances. Along a run they make a band, which is no look-up.

A query's terms for the W = queries + keys - 1 distances of a tile, the furthest first, are those of its keys, moved by
a place for each query: rows of W numbers seen as rows of W - 1.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend.tile_plan import Stage, TileCall, TilePlan
from kinformer.core.autocast import to_autocast
from kinformer.core.request import Request


class DistanceBand(NamedTuple):
    """`Distances` of a read, the furthest of them first: it stands `furthest` positions back."""

    table: Float[Tensor, "#H N *R"]
    asks: Float[Tensor, "B H T R"] | None
    values: Float[Tensor, "#H N V"] | None
    furthest: int

    def make_bias(
        self, stage: Stage, call: TileCall, rows: slice, asks: Float[Tensor, "n H q R"] | None
    ) -> Float[Tensor, "#n #H q k"]:
        """What is added to the scores of a call."""
        at = self.table_rows(stage, call)
        if at is None:
            return self.table[:, self._looked_up(stage, call, rows)].movedim(0, 1)
        if asks is not None:
            return skew((by_head(asks) @ self.table[:, at].mT).contiguous(), call.q.size, call.k.size)
        return self.table[:, at].unfold(1, call.k.size, 1).flip(1)[None]

    def learn(
        self, into: Tensor, stage: Stage, call: TileCall, rows: slice, gradient: Float[Tensor, "n H q k"]
    ) -> None:
        """Adds the gradient of the scores of a call to that of a table without `asks`."""
        gradient = gradient.sum(1, keepdim=True) if len(into) == 1 else gradient
        if (at := self.table_rows(stage, call)) is not None:
            into[:, at] += spread(gradient.sum(0, keepdim=True)).sum(1)
        else:
            index = self._looked_up(stage, call, rows).expand(len(gradient), -1, -1)
            into.index_add_(1, index.flatten(), gradient.transpose(0, 1).flatten(1))

    def table_rows(self, stage: Stage, call: TileCall) -> slice | None:
        """The rows of the table for the distances of each tile of a run."""
        distances = stage.tile_distances(call)
        return (
            None
            if distances is None
            else slice(self.furthest - distances[0], self.furthest - distances[-1] + 1, -distances.step)
        )

    def _looked_up(self, stage: Stage, call: TileCall, rows: slice) -> Int[Tensor, "#n q k"]:
        """The rows of the table for the pairs of a call that is no run."""
        q, k = (line.pos[rows if len(line.pos) > 1 else slice(None)] for line in (stage.q, stage.k))
        q, k = q[:, call.q.indices(q.device)].flatten(0, 1), k[:, call.k.indices(k.device)].flatten(0, 1)
        # padding is masked, wherever it seems to stand
        return (self.furthest - (q[:, :, None] - k[:, None])).clamp(0, self.table.shape[1] - 1)


def band_of(request: Request, plan: TilePlan) -> tuple[Tensor, DistanceBand] | None:
    """The queries to read, and the bias by all distances of a plan; None where there is no such form or no band."""
    if request.bias is None:
        return None
    nearest, furthest, bands = plan.span
    device = request.queries.q.device
    distances = request.bias.by_distance(request, torch.arange(furthest, nearest - 1, -1, device=device))
    if distances is None or (not bands and (distances.asks is not None or distances.values is not None)):
        return None
    if distances.asks is None:
        return distances.q, DistanceBand(distances.table, None, distances.values, furthest)
    return distances.q, DistanceBand(
        to_autocast(distances.table), to_autocast(distances.asks), distances.values, furthest
    )


def by_head(x: Float[Tensor, "n H q D"]) -> Float[Tensor, "H N D"]:
    """The queries of all tiles as those of one, so that a table is multiplied once."""
    return x.transpose(0, 1).flatten(1, 2)


def skew(x: Float[Tensor, "H N W"], queries: int, keys: int) -> Float[Tensor, "n H q k"]:
    """Terms of distances as terms of keys: a view."""
    heads, rows, width = x.shape
    strides = queries * width, rows * width, width - 1, 1
    return x.as_strided((rows // queries, heads, queries, keys), strides, x.storage_offset() + queries - 1)


def spread(x: Float[Tensor, "n H q k"]) -> Float[Tensor, "H N W"]:
    """Terms of keys as terms of distances, zeros elsewhere: the transpose of `skew`."""
    n, heads, queries, keys = x.shape
    terms = x.new_zeros(heads, n * queries, queries + keys - 1)
    skew(terms, queries, keys).copy_(x)
    return terms
