"""Biases by distance for attention that is computed in tiles (rectangles of queries and keys).

A bias by distance adds a term for each distance between query and key. A tile of consecutive queries and keys has W =
queries + keys - 1 distances, the furthest first. The terms of a query's keys are a window of the W terms, which moves
by one place per query. The terms of all pairs, the band, are therefore a view with a row stride of W - 1 numbers and
need no look-up.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend.tile_plan import Stage, TileCall, TilePlan
from kinformer.core.autocast import to_autocast
from kinformer.core.request import Request


class DistanceBand(NamedTuple):
    """The bias of one attention call by the distance between query and key, the furthest distance first.

    table: terms of each distance [#H, N], or vectors [#H, N, R] that are multiplied with `asks`.
    asks: vectors of the queries [B, H, T, R], or None if the table holds the terms themselves.
    values: vectors [#H, N, V] that are added to the values at each distance, or None.
    furthest: the distance of the first row of the table, in positions.
    """

    table: Float[Tensor, "#H N *R"]
    asks: Float[Tensor, "B H T R"] | None
    values: Float[Tensor, "#H N V"] | None
    furthest: int

    def make_bias(
        self, stage: Stage, call: TileCall, rows: slice, asks: Float[Tensor, "n H q R"] | None
    ) -> Float[Tensor, "#n #H q k"]:
        """Return the numbers that the bias adds to the scores of a call over n tiles."""
        at = self.table_rows(stage, call)
        if at is None:
            return self.table[:, self._looked_up(stage, call, rows)].movedim(0, 1)
        if asks is not None:
            return skew((by_head(asks) @ self.table[:, at].mT).contiguous(), call.q.size, call.k.size)
        return self.table[:, at].unfold(1, call.k.size, 1).flip(1)[None]

    def learn(
        self, into: Tensor, stage: Stage, call: TileCall, rows: slice, gradient: Float[Tensor, "n H q k"]
    ) -> None:
        """Add a call's part of the gradient of the bias table to `into`, if the bias has no `asks`.

        gradient: the gradient of the scores of the call.
        """
        gradient = gradient.sum(1, keepdim=True) if len(into) == 1 else gradient
        if (at := self.table_rows(stage, call)) is not None:
            into[:, at] += spread(gradient.sum(0, keepdim=True)).sum(1)
        else:
            index = self._looked_up(stage, call, rows).expand(len(gradient), -1, -1)
            into.index_add_(1, index.flatten(), gradient.transpose(0, 1).flatten(1))

    def table_rows(self, stage: Stage, call: TileCall) -> slice | None:
        """Return the rows of the table for the distances in each tile of a call.

        None if the tiles have no common distances (`Stage.tile_distances`); each pair is then looked up.
        """
        distances = stage.tile_distances(call)
        return (
            None
            if distances is None
            else slice(self.furthest - distances[0], self.furthest - distances[-1] + 1, -distances.step)
        )

    def _looked_up(self, stage: Stage, call: TileCall, rows: slice) -> Int[Tensor, "#n q k"]:
        """Return the table row of each pair, for a call whose tiles are not consecutive."""
        q, k = (line.pos[rows if len(line.pos) > 1 else slice(None)] for line in (stage.q, stage.k))
        q, k = q[:, call.q.indices(q.device)].flatten(0, 1), k[:, call.k.indices(k.device)].flatten(0, 1)
        # padding is masked, so its clamped distance has no effect
        return (self.furthest - (q[:, :, None] - k[:, None])).clamp(0, self.table.shape[1] - 1)


def band_of(request: Request, plan: TilePlan) -> tuple[Tensor, DistanceBand] | None:
    """Return the queries of an attention call, and its bias at all distances that a plan needs, or None.

    request: the attention call with its bias.
    plan: the plan of the request.

    Returns None if the request has no bias or its bias has no form by distance. It also returns None if the bias has
    `asks` or `values` and some calls of the plan have no band (`TilePlan.span`).
    """
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
    """Join the n tiles of `x` to one matrix per head, for a single matrix product with a table of a bias."""
    return x.transpose(0, 1).flatten(1, 2)


def skew(x: Float[Tensor, "H N W"], queries: int, keys: int) -> Float[Tensor, "n H q k"]:
    """Return the bias term of each (query, key) pair, as a view of the terms of distances.

    x: for each query, the terms of the W distances in its tile.
    queries: number of queries in a tile.
    keys: number of keys in a tile.
    """
    heads, rows, width = x.shape
    strides = queries * width, rows * width, width - 1, 1
    return x.as_strided((rows // queries, heads, queries, keys), strides, x.storage_offset() + queries - 1)


def spread(x: Float[Tensor, "n H q k"]) -> Float[Tensor, "H N W"]:
    """Return terms of distances from the terms `x` of pairs: the transpose of `skew`, 0 elsewhere."""
    n, heads, queries, keys = x.shape
    terms = x.new_zeros(heads, n * queries, queries + keys - 1)
    skew(terms, queries, keys).copy_(x)
    return terms
