"""Search for the keys with the highest scores, block by block, without a whole row of scores."""

from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.heads import Keys
from kinformer.core.memo import empty_memo
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores
from kinformer.core.ties import score_tolerance, top_indices

KEYS = 1024  # number of keys in a block
PAIRS = 1 << 21  # maximum number of scores in a block, over all rows and heads


def block_sizes(request: Request) -> list[int]:
    """Return the sizes of the blocks into which the queries of `request` are cut for the search."""
    batch, heads, length, _ = request.queries.q.shape
    keys = min(request.keys.k.shape[2], KEYS)
    size = max(16, PAIRS // max(1, batch * heads * keys))
    return [min(size, length - begin) for begin in range(0, length, size)] or [0]


@torch.no_grad()
def find_by_scores(request: Request, k: int) -> Int[Tensor, "B H T R"]:
    """Return the columns (places in the key tensor) of the `k` keys with the highest scores per query.

    Keys at the latest positions win ties. A query with fewer than k allowed keys gets -1 in the remaining entries, or
    columns of keys that the pattern does not allow.

    request: attention call with its queries and keys.
    k: number of keys for each query.
    """
    with disable_autocast(request.queries.q):
        return _find_by_scores(to_precise(request), k)


def _find_by_scores(request: Request, k: int) -> Int[Tensor, "B H T R"]:
    pos, sizes = request.keys.pos, block_sizes(request)
    order = request.memo.get(lambda: pos.sort(dim=-1, stable=True, descending=True).indices, "latest first", pos)
    keys = _reorder_keys(request.keys, order, request.queries.q.shape[1])
    starts = range(0, max(1, pos.shape[2]), KEYS)
    reads, begin, parts = _readable_blocks(request, sizes, keys.pos), 0, []
    for size, reads_block in zip(sizes, reads, strict=True):
        queries = request.queries.cut(slice(begin, begin + size))
        piece = request.replace(queries=queries, keys=keys, run=False, full=False, memo=empty_memo())
        parts.append(_best(piece, [lo for lo, any_ in zip(starts, reads_block, strict=True) if any_], k))
        begin += size
    columns = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
    order = order[:, :, None].expand(*columns.shape[:3], -1)  # [B #H S] to [B H T S]
    return torch.where(columns < 0, -1, order.take_along_dim(columns.clamp_min(0), -1))


def to_precise(request: Request) -> Request:
    """Return the request with queries and keys in float32 or wider.

    Products in fewer bits would select other keys.
    """
    queries, keys = request.queries, request.keys
    return request.replace(
        queries=queries._replace(q=at_least_float32(queries.q)), keys=keys._replace(k=at_least_float32(keys.k))
    )


def _reorder_keys(keys: Keys, order: Int[Tensor, "B #H S"], heads: int) -> Keys:
    """Return the keys in this order, without values; repeated for each head if heads have their own positions."""
    k = keys.k if order.shape[1] in (1, keys.k.shape[1]) else keys.k.repeat_interleave(heads // keys.k.shape[1], 1)
    k = k.take_along_dim(order[..., None], 2)
    return Keys(k, k, keys.pos.take_along_dim(order, -1), own=keys.own)


def _readable_blocks(request: Request, sizes: list[int], k_pos: Int[Tensor, "B #H S"]) -> list[list[bool]]:
    """Tell for each pair of blocks if a query may read a key; always true in a compiled graph."""
    parts = k_pos.split(KEYS, 2)
    if len(sizes) * len(parts) == 1 or sizes == [0] or torch.compiler.is_compiling():
        return [[True] * len(parts)] * len(sizes)
    (q_lo, q_hi), (k_lo, k_hi) = (position_bounds(pos) for pos in (request.queries.pos.split(sizes, 2), parts))
    may_read, _ = request.pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)
    reads: list[list[bool]] = (may_read & (q_hi >= 0)[:, None] & (k_hi >= 0)).tolist()
    return reads


def position_bounds(parts: tuple[Tensor, ...]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return the lowest and the highest position in each block of tokens, without padding.

    A block that holds only padding gets 0 and -1.

    parts: positions of each block.
    """
    highest = torch.stack([part.amax() for part in parts])
    lowest = torch.stack([part.where(part >= 0, torch.iinfo(part.dtype).max).amin() for part in parts])
    return lowest.where(highest >= 0, 0), highest


def _best(request: Request, starts: list[int], k: int) -> Int[Tensor, "B H T R"]:
    """Return the best columns of one block of queries in the blocks of keys at `starts`; earlier keys win ties."""
    batch, heads, length, _ = request.queries.q.shape
    k = min(k, request.keys.k.shape[2])
    columns = torch.full((batch, heads, length, k), -1, device=request.queries.q.device)
    score = columns.new_full(columns.shape, -torch.inf, dtype=request.queries.q.dtype)
    for lo in starts:
        piece = request.piece(None, slice(lo, lo + KEYS))
        merged = torch.cat([score, scores(piece).masked_fill_(~full_mask(piece), -torch.inf)], -1)
        place = partial(_columns, columns, lo)
        at = top_indices(merged, k, lambda last: score_tolerance(request, place(last)))  # noqa: B023
        columns = place(at)
        score = merged.take_along_dim(at, -1)
    return columns


def _columns(best: Int[Tensor, "B H T R"], lo: int, at: Int[Tensor, "B H T n"]) -> Int[Tensor, "B H T n"]:
    """Map places in the list of best columns, followed by the columns from `lo` on, to columns."""
    width = best.shape[-1]
    return torch.where(at < width, best.take_along_dim(at.clamp_max(width - 1), -1), at + (lo - width))
