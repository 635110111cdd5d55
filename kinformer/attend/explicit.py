"""explicit: the calls of a plan in plain operations, the reference's on each tile: for biases, dropout, any device."""

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from kinformer.attend.calls import Plan, Stage, Table, Tiles, shares
from kinformer.attend.lines import Line
from kinformer.core.autocast import lowered, precise
from kinformer.core.heads import Keys, Queries
from kinformer.core.memo import fresh
from kinformer.core.patterns.full import Full
from kinformer.core.read import AttentionOutput, merge
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, scores, softmax, weighted

Cuts = tuple[Tiles | Table, ...]


class Cut(torch.autograd.Function):
    """x by the tiles of every call, folded into the batch. One function for all, or its backward would be quadratic."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "B H L D"], *tiles: Tiles | Table) -> tuple[Tensor, ...]:
        ctx.tiles, ctx.shape = tiles, x.shape  # type: ignore[attr-defined]
        return tuple(_cut(x, one) for one in tiles)

    @staticmethod
    def backward(ctx: FunctionCtx, *given: Tensor) -> tuple[Tensor | None, ...]:
        tiles, shape = ctx.tiles, ctx.shape  # type: ignore[attr-defined]
        return Added.apply(shape, tiles, *given), *[None] * len(tiles)


class Added(torch.autograd.Function):
    """Tiles of every call added at their places of a row, zeros elsewhere: the transpose of `Cut`."""

    @staticmethod
    def forward(ctx: FunctionCtx, shape: torch.Size, tiles: Cuts, *given: Tensor) -> Tensor:
        ctx.tiles = tiles  # type: ignore[attr-defined]
        total = given[0].new_zeros(shape)
        for one, piece in zip(tiles, given, strict=True):
            n, size = one.many, one.size
            rows = piece.unflatten(0, (-1, n)).transpose(1, 2).reshape(shape[0], shape[1], n * size, shape[3])
            total.index_add_(2, one.places(piece.device).flatten(), rows)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, given: Tensor) -> tuple[Any, ...]:
        return None, None, *Cut.apply(given, *ctx.tiles)  # type: ignore[attr-defined]


def read(request: Request, plan: Plan) -> AttentionOutput:
    """Execute a plan with at least one stage; return y and lse."""
    rows = torch.arange(len(request.queries.q), device=request.queries.q.device)
    rows = rows if request.rows is None else request.rows
    turns = plan.stages[0].turns
    if turns == 1:
        return _merged(request, plan.stages, rows)
    stages = [[stage for stage in plan.stages if stage.first == first] for first in range(turns)]
    return _interleaved([_read_heads(request, first, turns, part, rows) for first, part in enumerate(stages)])


def _merged(request: Request, stages: list[Stage], rows: Int[Tensor, " B"]) -> AttentionOutput:
    reads = [_stage(request, stage, rows) for stage in stages]
    return reads[0] if len(reads) == 1 else merge(*reads)


def _read_heads(
    request: Request, first: int, turns: int, stages: list[Stage], rows: Int[Tensor, " B"]
) -> AttentionOutput:
    """Read the heads first, first + turns, ...; y is 0 and lse is -inf without a stage."""
    of_q, of_k = shares(first, turns, request.queries.q.shape[1], request.keys.k.shape[1])
    queries = request.queries._replace(q=request.queries.q[:, of_q], extras={})
    keys = request.keys._replace(k=request.keys.k[:, of_k], v=request.keys.v[:, of_k], extras={})
    if stages:
        return _merged(request.replace(queries=queries, keys=keys), stages, rows)
    lse = precise(queries.q).new_full(queries.q.shape[:3], -torch.inf)
    return AttentionOutput(lowered(queries.q).new_zeros(*lse.shape, keys.v.shape[3]), lse)


def _interleaved(reads: list[AttentionOutput]) -> AttentionOutput:
    """Merge N reads into one of all heads; read n holds the heads n, n + N, ..."""
    heads = sum(read.y.shape[1] for read in reads)
    order = [head for first in range(len(reads)) for head in range(first, heads, len(reads))]
    at = torch.tensor(order, device=reads[0].y.device).argsort()
    y = torch.cat([read.y for read in reads], 1).index_select(1, at)
    return AttentionOutput(y, torch.cat([read.lse for read in reads if read.lse is not None], 1).index_select(1, at))


def _stage(request: Request, stage: Stage, rows: Int[Tensor, " B"]) -> AttentionOutput:
    queries, keys, calls = request.queries, request.keys, stage.calls
    of_q, of_k = tuple(call.q for call in calls), tuple(call.k for call in calls)
    q, q_pos, q_sides, q_labels = _folded(queries, queries.q, stage.q, of_q)
    k, k_pos, k_sides, k_labels = _folded(keys, keys.k, stage.k, of_k)
    v = _pieces(keys.v, stage.k, of_k)
    reads = []
    for n, call in enumerate(calls):
        at = k_pos[n]
        if isinstance(call.k, Table):
            at = torch.where(call.k.real(at.device)[:, None].repeat(len(at) // call.k.many, 1, 1), at, -1)
        piece = request.replace(
            queries=Queries(q[n], q_pos[n], q_sides[n], q_labels[n], queries.head),
            keys=Keys(k[n], v[n], at, k_sides[n], k_labels[n], own=keys.own),
            pattern=Full() if call.where is None else call.where,
            lse=True,
            rows=rows.repeat_interleave(call.q.many),
            run=False,
            full=False,
            memo=fresh(),
        )
        logits, where = scores(piece), mask(piece)
        attention, level = softmax(logits if where is None else logits.masked_fill(~where, -torch.inf))
        reads.append(AttentionOutput(weighted(F.dropout(attention, request.dropout), piece), level))
    batch, heads, length = queries.q.shape[:3]
    shape = torch.Size((batch, heads, stage.q.size, reads[0].y.shape[3]))
    y = Added.apply(shape, of_q, *(one.y for one in reads))
    # 0 where no call reads, which is not the log of nothing: put there apart
    lse = Added.apply(shape[:3] + (1,), of_q, *(one.lse[..., None] for one in reads if one.lse is not None))[..., 0]
    read_at = torch.cat([tiles.places(y.device).flatten() for tiles in of_q])
    unread = torch.ones(stage.q.size, dtype=torch.bool, device=y.device).index_fill_(0, read_at, False)
    lse = lse.masked_fill(unread, -torch.inf)
    if stage.q.source is None:
        return AttentionOutput(y, lse)
    # what a row does not have goes to a place behind its end
    at = torch.where(stage.q.pos >= 0, stage.q.source, length)[:, None].expand(batch, heads, -1)
    whole = y.new_zeros(batch, heads, length + 1, y.shape[3]).scatter(2, at[..., None].expand_as(y), y)
    level = lse.new_full((batch, heads, length + 1), -torch.inf).scatter(2, at, lse)
    return AttentionOutput(whole[:, :, :length], level[:, :, :length])


def _folded(of: Queries | Keys, x: Tensor, line: Line, tiles: Cuts) -> tuple[Any, ...]:
    """For each call: vectors, positions, sides by name and labels by name."""
    pos = tuple(_cut(line.pos[:, None, :, None].expand(len(x), -1, -1, -1), one)[..., 0] for one in tiles)
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
    return Cut.apply(x, *tiles) if x.requires_grad else tuple(_cut(x, one) for one in tiles)


def _cut(x: Shaped[Tensor, "B H L D"], tiles: Tiles | Table) -> Shaped[Tensor, "N H size D"]:
    places = tiles.places(x.device)
    return x.index_select(2, places.flatten()).unflatten(2, places.shape).transpose(1, 2).flatten(0, 1)
