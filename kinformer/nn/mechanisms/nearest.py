"""Nearest: the keys that fit each query best, found block by block, so that no scores of a whole row are held."""

from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.autocast import exact, precise
from kinformer.core.heads import Keys
from kinformer.core.memo import fresh
from kinformer.core.request import Request
from kinformer.core.score_matrix import allowed, scores
from kinformer.core.ties import first, score_tolerance

KEYS = 1024  # of a block
PAIRS = 1 << 21  # scores of a block, of all rows and heads


def blocks(request: Request) -> list[int]:
    """So many queries are looked at together, one block after the other."""
    batch, heads, length, _ = request.queries.q.shape
    keys = min(request.keys.k.shape[2], KEYS)
    size = max(16, PAIRS // max(1, batch * heads * keys))
    return [min(size, length - begin) for begin in range(0, length, size)] or [0]


@torch.no_grad()
def nearest(request: Request, most: int) -> Int[Tensor, "B H T R"]:
    """The columns of the `most` keys that fit each query best; of equal ones the latest positions.

    A query with fewer keys gets -1 in their place, or others, which the pattern does not allow.
    """
    with exact(request.queries.q):
        return _nearest(in_float32(request), most)


def _nearest(request: Request, most: int) -> Int[Tensor, "B H T R"]:
    pos, sizes = request.keys.pos, blocks(request)
    order = request.memo.get(lambda: pos.sort(dim=-1, stable=True, descending=True).indices, "latest first", pos)
    keys = _ordered(request.keys, order, request.queries.q.shape[1])
    starts = range(0, max(1, pos.shape[2]), KEYS)
    reads, begin, best = _readable_blocks(request, sizes, keys.pos), 0, []
    for size, readable in zip(sizes, reads, strict=True):
        queries = request.queries.cut(slice(begin, begin + size))
        piece = request.replace(queries=queries, keys=keys, run=False, full=False, memo=fresh())
        best.append(_best(piece, [lo for lo, any_ in zip(starts, readable, strict=True) if any_], most))
        begin += size
    columns = torch.cat(best, 2) if len(best) > 1 else best[0]
    order = order[:, :, None].expand(*columns.shape[:3], -1)  # [B #H S] to [B H T S]
    return torch.where(columns < 0, -1, order.take_along_dim(columns.clamp_min(0), -1))


def in_float32(request: Request) -> Request:
    """With queries and keys in float32 at least: rounded further, products would choose others."""
    queries, keys = request.queries, request.keys
    return request.replace(queries=queries._replace(q=precise(queries.q)), keys=keys._replace(k=precise(keys.k)))


def _ordered(keys: Keys, order: Int[Tensor, "B #H S"], heads: int) -> Keys:
    """The keys in that order; values are not asked for. Where heads have positions of their own each has its keys."""
    k = keys.k if order.shape[1] in (1, keys.k.shape[1]) else keys.k.repeat_interleave(heads // keys.k.shape[1], 1)
    k = k.take_along_dim(order[..., None], 2)
    return Keys(k, k, keys.pos.take_along_dim(order, -1), own=keys.own)


def _readable_blocks(request: Request, sizes: list[int], k_pos: Int[Tensor, "B #H S"]) -> list[list[bool]]:
    """May any query of a block read any key of another? One look for all blocks; a graph is compiled for all."""
    parts = k_pos.split(KEYS, 2)
    if len(sizes) * len(parts) == 1 or sizes == [0] or torch.compiler.is_compiling():
        return [[True] * len(parts)] * len(sizes)
    (q_lo, q_hi), (k_lo, k_hi) = (ends(pos) for pos in (request.queries.pos.split(sizes, 2), parts))
    readable, _ = request.pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)
    by_block: list[list[bool]] = (readable & (q_hi >= 0)[:, None] & (k_hi >= 0)).tolist()
    return by_block


def ends(parts: tuple[Tensor, ...]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """The lowest and the highest position of each block, padding not counted; where there is nothing else 0 and -1."""
    highest = torch.stack([part.amax() for part in parts])
    lowest = torch.stack([part.where(part >= 0, torch.iinfo(part.dtype).max).amin() for part in parts])
    return lowest.where(highest >= 0, 0), highest


def _best(request: Request, starts: list[int], most: int) -> Int[Tensor, "B H T R"]:
    """The best columns of one block of queries in some blocks of keys, which are in the order that decides ties."""
    batch, heads, length, _ = request.queries.q.shape
    most = min(most, request.keys.k.shape[2])
    columns = torch.full((batch, heads, length, most), -1, device=request.queries.q.device)
    score = columns.new_full(columns.shape, -torch.inf, dtype=request.queries.q.dtype)
    for lo in starts:
        piece = request.piece(None, slice(lo, lo + KEYS))
        scores_so_far = torch.cat([score, scores(piece).masked_fill_(~allowed(piece), -torch.inf)], -1)
        place = partial(_columns, columns, lo)
        at = first(scores_so_far, most, lambda last: score_tolerance(request, place(last)))  # noqa: B023
        columns = place(at)
        score = scores_so_far.take_along_dim(at, -1)
    return columns


def _columns(best: Int[Tensor, "B H T R"], lo: int, at: Int[Tensor, "B H T n"]) -> Int[Tensor, "B H T n"]:
    """The columns of places in a list of the best columns so far followed by the columns from `lo` on."""
    most = best.shape[-1]
    return torch.where(at < most, best.take_along_dim(at.clamp_max(most - 1), -1), at + (lo - most))
