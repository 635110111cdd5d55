"""Search for the keys with the highest scores, with an index over keys that many queries may read."""

from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import disable_autocast
from kinformer.core.heads import number_of_groups
from kinformer.core.pattern import pair_mask
from kinformer.core.request import Request
from kinformer.core.search import ProductIndex, Search
from kinformer.core.ties import Tolerance, tolerance_of, top_indices
from kinformer.nn.mechanisms.highest_scores import find_by_scores, position_bounds, to_precise

FEW = 8  # calls with fewer queries score every key without an index
STEP = 256  # number of queries and of keys in a block
CANDIDATES = 1 << 14  # number of candidates scored at once


def find_best_keys(request: Request, k: int, search: Search, segment: int | None = None) -> Int[Tensor, "B H T R"]:
    """Return the columns (places in the key tensor) of the `k` keys with the highest scores per query.

    Keys at the latest positions win ties. An index searches the keys that a whole block of queries may read. Other keys
    are scored directly. A query with fewer than k allowed keys gets -1 in the remaining entries, or columns of keys
    that the pattern does not allow. All keys are scored in calls with fewer than 8 queries, in compiled graphs, and if
    `search` has no index.

    request: attention call with its queries and keys.
    k: number of keys for each query.
    search: kind of index, such as a FAISS index.
    segment: number of tokens per segment if the queries of a segment may read the same keys of earlier segments.
    """
    few = request.queries.q.shape[2] < FEW or torch.compiler.is_compiling()
    if few or search.product_index(request.keys.k.shape[-1]) is None:
        return find_by_scores(request, k)
    return find_by_index(request, k, search, segment)


@torch.no_grad()
def find_by_index(request: Request, k: int, search: Search, segment: int | None = None) -> Int[Tensor, "B H T R"]:
    """Return the same columns as `find_best_keys`, with an index also if a call has few queries.

    All keys are still scored in rows with fewer than 8 real queries.

    request, k, segment: as in `find_best_keys`.
    search: kind of index; it must have an index for keys of this width.
    """
    with disable_autocast(request.queries.q):
        return _find_by_index(to_precise(request), k, search, segment)


def _find_by_index(request: Request, k: int, search: Search, segment: int | None) -> Int[Tensor, "B H T R"]:
    (batch, heads, length, _), (_, groups, slots, _) = request.queries.q.shape, request.keys.k.shape
    k, shared = min(k, slots), number_of_groups(heads, groups)
    best = torch.full((batch, heads, length, k), -1, device=request.queries.q.device)
    for b, g in product(range(batch), range(groups)):
        row = _row(request, b, g, shared)
        sizes = _sizes(request.queries.pos[b, 0], segment)
        may_read, every = _cover(request, row, sizes)
        if int((request.queries.pos[b, 0] >= 0).sum()) < FEW:
            every = torch.zeros_like(every)  # score every key
        keys, begin = _SharedKeys(search, row), 0
        for size, part, whole in zip(sizes, may_read & ~every, every, strict=True):
            at = slice(begin, begin + size)
            columns = _of_block(request, row, at, keys.set_blocks(whole), row.of_blocks(part), k)
            best[b, row.heads, at, : columns.shape[1]] = columns.unflatten(0, (shared, size))
            begin += size
    return best


class _Row(NamedTuple):
    """Queries of the heads that share a key head, and its keys in order of position, without padding."""

    b: int
    heads: slice
    q: Float[Tensor, "h T K"]
    k: Float[Tensor, "n K"]
    columns: Int[Tensor, " n"]
    pos: Int[Tensor, " n"]

    def of_blocks(self, blocks: Bool[Tensor, " m"]) -> Int[Tensor, " _"]:
        """Return the numbers of the keys in the marked blocks; keys are numbered by position, without padding."""
        return blocks.repeat_interleave(STEP)[: len(self.columns)].nonzero()[:, 0]


def _row(request: Request, b: int, g: int, shared: int) -> _Row:
    heads = slice(g * shared, (g + 1) * shared)
    k_pos = request.keys.pos[b, heads.start if request.keys.pos.shape[1] > 1 else 0]
    order = k_pos.argsort(stable=True)
    order = order[k_pos[order] >= 0]
    q = request.queries.q[b, heads] * request.scale
    return _Row(b, heads, q, request.keys.k[b, g][order], order, k_pos[order])


def _sizes(pos: Int[Tensor, " T"], segment: int | None) -> list[int]:
    """Return the sizes of blocks of at most STEP queries of one segment; cuts follow positions, not padding."""
    of = pos // STEP if segment is None else pos // segment * segment + pos % segment // STEP
    counts = of.unique_consecutive(return_counts=True)[1].tolist()
    return [min(STEP, count - begin) for count in counts for begin in range(0, count, STEP)]


def _cover(request: Request, row: _Row, sizes: list[int]) -> tuple[Bool[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Tell for each block of queries and of keys if any pair may be allowed, and if every pair is allowed."""
    (q_lo, q_hi), (k_lo, k_hi) = (
        position_bounds(parts) for parts in (request.queries.pos[row.b].split(sizes, 1), row.pos.split(STEP))
    )
    may_read, every = request.pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)
    has_tokens = (q_hi >= 0)[:, None] & (k_hi >= 0)
    return may_read & has_tokens, every & has_tokens


class _SharedKeys:
    """Index of the keys that all queries of a block may read; the next block reuses and extends it."""

    def __init__(self, search: Search, row: _Row):
        self.search, self.row = search, row
        self.index: ProductIndex | None = None
        self.blocks: Bool[Tensor, " m"] | None = None
        self.numbers = row.columns[:0]

    def set_blocks(self, whole: Bool[Tensor, " m"]) -> "_SharedKeys":
        """Make the index hold exactly the keys of the marked blocks."""
        if self.blocks is None or bool((self.blocks & ~whole).any()):
            self.index, self.blocks = self.search.product_index(self.row.k.shape[1]), torch.zeros_like(whole)
            self.numbers = self.row.columns[:0]
        new = self.row.of_blocks(whole & ~self.blocks)
        if len(new) and self.index is not None:
            self.index.add(self.row.k[new])
            self.numbers, self.blocks = torch.cat([self.numbers, new]), whole
        return self

    def find(self, q: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        """Return the numbers of up to k keys that the index finds for each query; -1 for none."""
        if self.index is None or not len(self.numbers):
            return self.numbers.new_empty(len(q), 0)
        candidates = self.index.find(q, k)
        return torch.where(candidates < 0, -1, self.numbers[candidates.clamp_min(0)])


def _of_block(
    request: Request, row: _Row, at: slice, shared: _SharedKeys, near: Int[Tensor, " n"], k: int
) -> Int[Tensor, "N R"]:
    """Return the best columns of a block of queries: shared keys by the index, `near` keys by their scores."""
    q = row.q[:, at].flatten(0, 1)
    keys = shared.find(q, k)
    if len(near):
        near = near.flip(0)  # equal scores prefer the latest position
        score = (q @ row.k[near].T).masked_fill(~_allowed_pairs(request, row, at, near), -torch.inf)
        nearest = top_indices(score, min(k, len(near)), _tolerance(row, q, near.expand(len(q), -1)))
        keys = torch.cat([keys, near[nearest].masked_fill(score.gather(1, nearest) == -torch.inf, -1)], 1)
    if not keys.shape[1]:
        return keys
    keys = keys.sort(1, descending=True).values
    size = max(1, CANDIDATES // keys.shape[1])
    pieces = []
    for q_, candidates in zip(q.split(size), keys.split(size), strict=True):
        score = (row.k[candidates.clamp_min(0)] @ q_[..., None]).squeeze(-1).masked_fill(candidates < 0, -torch.inf)
        numbers = candidates.gather(1, top_indices(score, min(k, score.shape[1]), _tolerance(row, q_, candidates)))
        pieces.append(torch.where(numbers < 0, -1, row.columns[numbers.clamp_min(0)]))
    return torch.cat(pieces)


def _tolerance(row: _Row, q: Float[Tensor, "N K"], numbers: Int[Tensor, "N n"]) -> Tolerance:
    """Return the rounding tolerance of the products with candidate keys, as a function of a candidate's place."""

    def tolerance(place: Int[Tensor, "N 1"]) -> Float[Tensor, "N 1"]:
        k = row.k[numbers.gather(1, place).clamp_min(0)[:, 0]]
        return tolerance_of(q.norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True))

    return tolerance


def _allowed_pairs(request: Request, row: _Row, at: slice, near: Int[Tensor, " n"]) -> Bool[Tensor, "N n"]:
    """Return which `near` keys each query of a block may read."""
    q_pos = request.queries.pos[row.b : row.b + 1]
    q_pos = (q_pos[:, row.heads] if q_pos.shape[1] > 1 else q_pos)[..., at]
    names = range(request.queries.head + row.heads.start, request.queries.head + row.heads.stop)
    number = torch.tensor([row.b], device=row.q.device) if request.rows is None else request.rows[row.b : row.b + 1]
    may = pair_mask(request.pattern, q_pos, row.pos[near][None, None], names, number)
    return may[0].expand(len(names), -1, -1).flatten(0, 1)
