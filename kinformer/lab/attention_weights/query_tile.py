"""query_tile: the attention weights of some consecutive queries, from the attention calls of a layer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from kinformer.core.autocast import at_least_float32, disable_autocast, to_autocast
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores, softmax, weigh_values


class QueryTile(NamedTuple):
    """Attention weights and outputs of R consecutive queries, merged over all calls of a layer.

    first: position of the first query.
    start: position of the first of the K keys; the queries read no other keys.
    weights: weights of the keys. A row sums to 1, or to 0 if its query reads no key.
    y: output of the attention calls.
    has_values: False for a query whose y is incomplete, because a call reads vectors of another width than the values.
    """

    first: int
    start: int
    weights: Float[Tensor, "H R K"]
    y: Float[Tensor, "H R V"]
    has_values: Bool[Tensor, "H R"]


class _CallTile(NamedTuple):
    """The queries of a tile in one attention call; a mechanism may fold blocks or buckets into rows B.

    row: head * (size + 1) + query, an index into the rows of the whole tile, [B, H, R].
    column: position of each key; padding is in the column after the last token.
    """

    row: Int[Tensor, "B H R"]
    column: Int[Tensor, "B H S"]
    weights: Float[Tensor, "B H R S"]
    lse: Float[Tensor, "B H R"]
    y: Float[Tensor, "B H R V"]


def query_tile(
    calls: Sequence[Request], heads: int, count: int, width: int, first: int, size: int, cell: int = 1
) -> QueryTile:
    """Return the attention weights of the queries at positions `first` to `first + size - 1`.

    Calls over several sets of keys, such as a window and global tokens, are merged by their log-sum-exp:

    w_ij = sum_c exp(lse_ic - lse_i) softmax_c(s_ij),  lse_i = log sum_c exp(lse_ic)

    calls: the attention calls of the layer.
    heads: number of heads of the layer.
    count: number of tokens T of the text.
    width: width V of the layer's values.
    first, size: first position, and number of positions.
    cell: the first key is at a multiple of this number.
    """
    size = min(size, count - first)
    if len(calls) == 1 and _reads_plain_row(calls[0], heads, count, width):
        return _plain_tile(calls[0], count, first, size, cell)
    tiles = [tile for call in calls if (tile := _call_tile(call, count, first, size)) is not None]
    rows = heads * (size + 1)  # the last row of a head and the last column collect padding and other queries
    highest = torch.full((rows,), -math.inf, dtype=torch.float64)
    for tile in tiles:
        highest.scatter_reduce_(0, tile.row.flatten(), tile.lse.flatten(), "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    total = torch.zeros(rows, dtype=torch.float64)
    for tile in tiles:
        total.index_add_(0, tile.row.flatten(), (tile.lse - highest[tile.row]).exp().flatten())
    weights = torch.zeros(rows, count + 1, dtype=torch.float64)
    y = torch.zeros(rows, width, dtype=torch.float64)
    has_values = torch.ones(rows, dtype=torch.bool)
    for tile in tiles:
        share = ((tile.lse - highest[tile.row]).exp() / total[tile.row].clamp_min(1e-300))[..., None]  # [B H R 1]
        _add_weights(weights, tile, share * tile.weights)
        if tile.y.shape[-1] == width:
            y.index_add_(0, tile.row.flatten(), (share * tile.y).flatten(0, 2))
        else:  # a few global queries read inputs in place of values
            has_values[tile.row.flatten()] = False
    return QueryTile(
        first,
        0,
        weights.unflatten(0, (heads, -1))[:, :size, :count],
        y.unflatten(0, (heads, -1))[:, :size],
        has_values.unflatten(0, (heads, -1))[:, :size],
    )


def _reads_plain_row(call: Request, heads: int, count: int, width: int) -> bool:
    """Whether a call has all queries and keys of a layer in one row, in the order of their positions."""
    is_whole = call.queries.head == 0 and call.queries.q.shape[:2] == (1, heads) and call.keys.v.shape[3] == width
    positions = torch.arange(count, device=call.queries.pos.device)
    return is_whole and all(
        part.pos.shape[2] == count and bool((part.pos == positions).all()) for part in (call.queries, call.keys)
    )


def _plain_tile(call: Request, count: int, first: int, size: int, cell: int) -> QueryTile:
    """Return a tile of a layer with a single call; only the keys that its pattern reaches are computed."""
    back, ahead = call.pattern.reach()
    start = int(min(max(first - back, 0), count - 1)) // cell * cell
    end = int(max(min(first + size + ahead, count), start + 1))  # at least one key, although the pattern may exclude it
    piece = call.piece(slice(first, first + size), slice(start, end))
    attention, _ = softmax_over_keys(piece)
    y = weigh_values(attention, piece)[0].cpu().double()
    return QueryTile(first, start, attention[0].cpu(), y, torch.ones(y.shape[:2], dtype=torch.bool))


def _add_weights(total: Float[Tensor, "N t"], tile: _CallTile, weights: Float[Tensor, "B H R S"]) -> None:
    """Add the weights of a call to the rows and columns that they belong to."""
    columns = tile.column
    if not columns.numel():
        return
    run = columns[0, 0]
    start, end = int(run[0]), int(run[0]) + len(run)
    if bool((columns == run).all()) and torch.equal(run, torch.arange(start, end)):  # no index of each pair is needed
        total[:, start:end].index_add_(0, tile.row.flatten(), weights.flatten(0, 2))
        return
    pairs = tile.row[..., None] * total.shape[1] + columns[:, :, None]
    total.view(-1).index_add_(0, pairs.flatten(), weights.flatten())


def _call_tile(request: Request, count: int, first: int, size: int) -> _CallTile | None:
    """Return the queries of a call that stand in a tile; None if there are none."""
    batch, heads = request.queries.q.shape[:2]
    pos = request.queries.pos
    inside = ((pos >= first) & (pos < first + size)).any(1)  # [B T]
    most = int(inside.sum(1).max())
    if not most:
        return None
    at = (~inside).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]  # [B R], perhaps with other queries at the end
    piece = request.piece(at, None)
    attention, lse = softmax_over_keys(piece)
    y = weigh_values(attention, piece)
    q_pos, k_pos = (part.pos.cpu() for part in (piece.queries, piece.keys))
    place = torch.where((q_pos >= first) & (q_pos < first + size), q_pos - first, size).expand(batch, heads, -1)
    head = (request.queries.head + torch.arange(heads))[:, None]
    column = by_query_head(torch.where(k_pos < 0, count, k_pos), heads).expand(batch, -1, -1)
    return _CallTile(head * (size + 1) + place, column, *(part.cpu().double() for part in (attention, lse, y)))


def softmax_over_keys(request: Request) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T"]]:
    """Return the attention weights of a call and their log-sum-exp, in float32 or better.

    request: the attention call.
    """
    return softmax(_scores_float32(request).masked_fill(~full_mask(request), -torch.inf))


def _scores_float32(request: Request) -> Float[Tensor, "B H T S"]:
    """Compute the scores in float32 or better from inputs in autocast's dtype, as a kernel does."""
    q, k = request.queries, request.keys
    wide = [at_least_float32(to_autocast(x)) for x in (q.q, k.k)]
    with disable_autocast(q.q):
        return at_least_float32(scores(request.replace(queries=q._replace(q=wide[0]), keys=k._replace(k=wide[1]))))


def by_query_head(x: Shaped[Tensor, "B G *S"], heads: int) -> Shaped[Tensor, "B H *S"]:
    """Repeat the values of each key head for the query heads that read it.

    x: values by key head.
    heads: number of query heads.
    """
    return x.repeat_interleave(heads // x.shape[1], 1)
