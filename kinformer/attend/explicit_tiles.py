"""Attention by a plan (calls over tiles of queries and keys) in plain PyTorch operations.

Each tile is computed by the operations of the executor `reference`. So biases, dropout and every device are supported.
"""

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from kinformer.attend.position_runs import Line
from kinformer.attend.tile_plan import BlockTable, Stage, StridedTiles, TilePlan, shares
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.autocast import at_least_float32, to_autocast
from kinformer.core.heads import Keys, Queries
from kinformer.core.memo import empty_memo
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, scores, softmax, weigh_values

Cuts = tuple[StridedTiles | BlockTable, ...]


class CutTiles(torch.autograd.Function):
    """Autograd function that cuts rows into the tiles of every call and folds the tiles into the batch.

    One function makes the tiles of all calls. With a function for each call, the backward would take quadratic time.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "B H L D"], *tiles: StridedTiles | BlockTable) -> tuple[Tensor, ...]:
        ctx.tiles, ctx.shape = tiles, x.shape  # type: ignore[attr-defined]
        return tuple(_cut(x, tile) for tile in tiles)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tiles, shape = ctx.tiles, ctx.shape  # type: ignore[attr-defined]
        return AddTiles.apply(shape, tiles, *gradients), *[None] * len(tiles)


class AddTiles(torch.autograd.Function):
    """Autograd function that adds tiles at their places to rows of zeros: the transpose of `CutTiles`."""

    @staticmethod
    def forward(ctx: FunctionCtx, shape: torch.Size, tiles: Cuts, *pieces: Tensor) -> Tensor:
        ctx.tiles = tiles  # type: ignore[attr-defined]
        total = pieces[0].new_zeros(shape)
        for tile, piece in zip(tiles, pieces, strict=True):
            n, size = tile.many, tile.size
            rows = piece.unflatten(0, (-1, n)).transpose(1, 2).reshape(shape[0], shape[1], n * size, shape[3])
            total.index_add_(2, tile.indices(piece.device).flatten(), rows)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Any, ...]:
        return None, None, *CutTiles.apply(gradient, *ctx.tiles)  # type: ignore[attr-defined]


def read(request: Request, plan: TilePlan) -> AttentionOutput:
    """Compute y and the log-sum-exp of a request by its plan, in plain PyTorch operations.

    request: the attention call.
    plan: the plan of the request, with at least one stage (group of calls).
    """
    rows = torch.arange(len(request.queries.q), device=request.queries.q.device)
    rows = rows if request.rows is None else request.rows
    turns = plan.stages[0].turns
    if turns == 1:
        return _read_stages(request, plan.stages, rows)
    stages = [[stage for stage in plan.stages if stage.first == first] for first in range(turns)]
    return _interleave_heads([_read_heads(request, first, turns, part, rows) for first, part in enumerate(stages)])


def _read_stages(request: Request, stages: list[Stage], rows: Int[Tensor, " B"]) -> AttentionOutput:
    reads = [_read_stage(request, stage, rows) for stage in stages]
    return reads[0] if len(reads) == 1 else merge(*reads)


def _read_heads(
    request: Request, first: int, turns: int, stages: list[Stage], rows: Int[Tensor, " B"]
) -> AttentionOutput:
    """Compute the heads first, first + turns, ...; without a stage, y is 0 and lse is -inf."""
    of_q, of_k = shares(first, turns, request.queries.q.shape[1], request.keys.k.shape[1])
    queries = request.queries._replace(q=request.queries.q[:, of_q], extras={})
    keys = request.keys._replace(k=request.keys.k[:, of_k], v=request.keys.v[:, of_k], extras={})
    if stages:
        return _read_stages(request.replace(queries=queries, keys=keys), stages, rows)
    lse = at_least_float32(queries.q).new_full(queries.q.shape[:3], -torch.inf)
    return AttentionOutput(to_autocast(queries.q).new_zeros(*lse.shape, keys.v.shape[3]), lse)


def _interleave_heads(reads: list[AttentionOutput]) -> AttentionOutput:
    """Merge N outputs into one output of all heads; output n holds the heads n, n + N, ..."""
    heads = sum(read.y.shape[1] for read in reads)
    order = [head for first in range(len(reads)) for head in range(first, heads, len(reads))]
    at = torch.tensor(order, device=reads[0].y.device).argsort()
    y = torch.cat([read.y for read in reads], 1).index_select(1, at)
    return AttentionOutput(y, torch.cat([read.lse for read in reads if read.lse is not None], 1).index_select(1, at))


def _read_stage(request: Request, stage: Stage, rows: Int[Tensor, " B"]) -> AttentionOutput:
    queries, keys, calls = request.queries, request.keys, stage.calls
    of_q, of_k = tuple(call.q for call in calls), tuple(call.k for call in calls)
    q, q_pos, q_sides, q_labels = _tokens_of_calls(queries, queries.q, stage.q, of_q)
    k, k_pos, k_sides, k_labels = _tokens_of_calls(keys, keys.k, stage.k, of_k)
    v = _pieces(keys.v, stage.k, of_k)
    reads = []
    for n, call in enumerate(calls):
        at = k_pos[n]
        if isinstance(call.k, BlockTable):
            at = torch.where(call.k.is_real(at.device)[:, None].repeat(len(at) // call.k.many, 1, 1), at, -1)
        piece = request.replace(
            queries=Queries(q[n], q_pos[n], q_sides[n], q_labels[n], queries.head),
            keys=Keys(k[n], v[n], at, k_sides[n], k_labels[n], own=keys.own),
            pattern=Full() if call.where is None else call.where,
            lse=True,
            rows=rows.repeat_interleave(call.q.many),
            run=False,
            full=False,
            memo=empty_memo(),
        )
        logits, where = scores(piece), mask(piece)
        attention, level = softmax(logits if where is None else logits.masked_fill(~where, -torch.inf))
        reads.append(AttentionOutput(weigh_values(F.dropout(attention, request.dropout), piece), level))
    batch, heads, length = queries.q.shape[:3]
    shape = torch.Size((batch, heads, stage.q.size, reads[0].y.shape[3]))
    y = AddTiles.apply(shape, of_q, *(output.y for output in reads))
    # the sum is 0 for queries that no call reads, but their lse is -inf
    lse = AddTiles.apply(
        shape[:3] + (1,), of_q, *(output.lse[..., None] for output in reads if output.lse is not None)
    )[..., 0]
    read_at = torch.cat([tiles.indices(y.device).flatten() for tiles in of_q])
    unread = torch.ones(stage.q.size, dtype=torch.bool, device=y.device).index_fill_(0, read_at, False)
    lse = lse.masked_fill(unread, -torch.inf)
    if stage.q.source is None:
        return AttentionOutput(y, lse)
    # tokens that a row lacks are written to an extra place after its end
    at = torch.where(stage.q.pos >= 0, stage.q.source, length)[:, None].expand(batch, heads, -1)
    whole = y.new_zeros(batch, heads, length + 1, y.shape[3]).scatter(2, at[..., None].expand_as(y), y)
    level = lse.new_full((batch, heads, length + 1), -torch.inf).scatter(2, at, lse)
    return AttentionOutput(whole[:, :, :length], level[:, :, :length])


def _tokens_of_calls(of: Queries | Keys, x: Tensor, line: Line, tiles: Cuts) -> tuple[Any, ...]:
    """Return the vectors, positions, extras by name and labels by name of each call."""
    pos = tuple(_cut(line.pos[:, None, :, None].expand(len(x), -1, -1, -1), tile)[..., 0] for tile in tiles)
    extras = {name: _pieces(side, line, tiles) for name, side in of.extras.items()}
    labels = {name: _pieces(label[:, None, :, None], line, tiles) for name, label in of.labels.items()}
    of_calls = range(len(tiles))
    return (
        _pieces(x, line, tiles),
        pos,
        [{name: pieces[n] for name, pieces in extras.items()} for n in of_calls],
        [{name: pieces[n][:, 0, :, 0] for name, pieces in labels.items()} for n in of_calls],
    )


def _pieces(x: Shaped[Tensor, "B H L D"], line: Line, tiles: Cuts) -> tuple[Tensor, ...]:
    if line.source is not None:
        x = x.gather(2, line.source[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3]))
    return CutTiles.apply(x, *tiles) if x.requires_grad else tuple(_cut(x, tile) for tile in tiles)


def _cut(x: Shaped[Tensor, "B H L D"], tiles: StridedTiles | BlockTable) -> Shaped[Tensor, "N H size D"]:
    places = tiles.indices(x.device)
    return x.index_select(2, places.flatten()).unflatten(2, places.shape).transpose(1, 2).flatten(0, 1)
