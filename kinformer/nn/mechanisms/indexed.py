"""Indexed: the keys that fit each query best, of those that a search finds among keys that all queries may read."""

from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import exact
from kinformer.core.heads import number_of_groups
from kinformer.core.pattern import pairs
from kinformer.core.request import Request
from kinformer.core.search import Products, Search
from kinformer.core.ties import Tolerance, first, tolerance_of
from kinformer.nn.mechanisms.nearest import ends, in_float32, nearest

FEW = 8  # queries of a call for which nothing is searched: every key is scored
STEP = 256  # queries, and keys, that are looked at together
CANDIDATES = 1 << 14  # scored at a time


def best(request: Request, most: int, search: Search, segment: int | None = None) -> Int[Tensor, "B H T R"]:
    """The columns of the `most` keys that fit each query best; of equal ones the latest positions.

    Keys that a whole block of queries may read are searched, others scored. A segment: within it queries may read the
    same keys of earlier ones. A query with fewer keys gets -1 in their place, or others, which the pattern does not
    allow.
    """
    few = request.queries.q.shape[2] < FEW or torch.compiler.is_compiling()
    if few or search.products(request.keys.k.shape[-1]) is None:
        return nearest(request, most)
    return indexed(request, most, search, segment)


@torch.no_grad()
def indexed(request: Request, most: int, search: Search, segment: int | None = None) -> Int[Tensor, "B H T R"]:
    """As `best`, whatever is searched."""
    with exact(request.queries.q):
        return _indexed(in_float32(request), most, search, segment)


def _indexed(request: Request, most: int, search: Search, segment: int | None) -> Int[Tensor, "B H T R"]:
    (batch, heads, length, _), (_, groups, slots, _) = request.queries.q.shape, request.keys.k.shape
    most, shared = min(most, slots), number_of_groups(heads, groups)
    columns = torch.full((batch, heads, length, most), -1, device=request.queries.q.device)
    for b, g in product(range(batch), range(groups)):
        row = _row(request, b, g, shared)
        sizes = _sizes(request.queries.pos[b, 0], segment)
        readable, all_readable = _cover(request, row, sizes)
        if int((request.queries.pos[b, 0] >= 0).sum()) < FEW:
            all_readable = torch.zeros_like(all_readable)  # nothing is searched
        keys, begin = _Inside(search, row), 0
        for size, part, whole in zip(sizes, readable & ~all_readable, all_readable, strict=True):
            at = slice(begin, begin + size)
            best = _of_block(request, row, at, keys.brought(whole), row.of_blocks(part), most)
            columns[b, row.heads, at, : best.shape[1]] = best.unflatten(0, (shared, size))
            begin += size
    return columns


class _Row(NamedTuple):
    """The queries of the heads that share a key head, and its keys, the latest position last, without padding."""

    b: int
    heads: slice
    q: Float[Tensor, "h T K"]
    k: Float[Tensor, "n K"]
    columns: Int[Tensor, " n"]
    pos: Int[Tensor, " n"]

    def of_blocks(self, blocks: Bool[Tensor, " m"]) -> Int[Tensor, " _"]:
        """The numbers of the keys of some blocks."""
        return blocks.repeat_interleave(STEP)[: len(self.columns)].nonzero()[:, 0]


def _row(request: Request, b: int, g: int, shared: int) -> _Row:
    heads = slice(g * shared, (g + 1) * shared)
    k_pos = request.keys.pos[b, heads.start if request.keys.pos.shape[1] > 1 else 0]
    order = k_pos.argsort(stable=True)
    order = order[k_pos[order] >= 0]
    q = request.queries.q[b, heads] * request.scale
    return _Row(b, heads, q, request.keys.k[b, g][order], order, k_pos[order])


def _sizes(pos: Int[Tensor, " T"], segment: int | None) -> list[int]:
    """How many queries each block has: at most STEP, of one segment, cut by position: padding moves no cut."""
    of = pos // STEP if segment is None else pos // segment * segment + pos % segment // STEP
    counts = of.unique_consecutive(return_counts=True)[1].tolist()
    return [min(STEP, count - begin) for count in counts for begin in range(0, count, STEP)]


def _cover(request: Request, row: _Row, sizes: list[int]) -> tuple[Bool[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Of each block of queries and of keys: may any pair be allowed, and is every one surely."""
    (q_lo, q_hi), (k_lo, k_hi) = ends(request.queries.pos[row.b].split(sizes, 1)), ends(row.pos.split(STEP))
    readable, all_readable = request.pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)
    real = (q_hi >= 0)[:, None] & (k_hi >= 0)
    return readable & real, all_readable & real


class _Inside:
    """What is searched: blocks of keys that all queries of a block may read, kept as long as the next may too."""

    def __init__(self, search: Search, row: _Row):
        self.search, self.row = search, row
        self.products: Products | None = None
        self.blocks: Bool[Tensor, " m"] | None = None
        self.numbers = row.columns[:0]

    def brought(self, whole: Bool[Tensor, " m"]) -> "_Inside":
        """The same with these blocks of keys in it and no other."""
        if self.blocks is None or bool((self.blocks & ~whole).any()):
            self.products, self.blocks = self.search.products(self.row.k.shape[1]), torch.zeros_like(whole)
            self.numbers = self.row.columns[:0]
        new = self.row.of_blocks(whole & ~self.blocks)
        if len(new) and self.products is not None:
            self.products.add(self.row.k[new])
            self.numbers, self.blocks = torch.cat([self.numbers, new]), whole
        return self

    def find(self, q: Float[Tensor, "N K"], most: int) -> Int[Tensor, "N R"]:
        """The numbers of keys that may be the best of each query; -1 where there are fewer."""
        if self.products is None or not len(self.numbers):
            return self.numbers.new_empty(len(q), 0)
        rows = self.products.find(q, most)
        return torch.where(rows < 0, -1, self.numbers[rows.clamp_min(0)])


def _of_block(
    request: Request, row: _Row, at: slice, inside: _Inside, near: Int[Tensor, " n"], most: int
) -> Int[Tensor, "N R"]:
    """The best columns of a block of queries: what is found inside, and of the keys near by those that may be read."""
    q = row.q[:, at].flatten(0, 1)
    keys = inside.find(q, most)
    if len(near):
        near = near.flip(0)  # of equal ones the latest come first
        score = (q @ row.k[near].T).masked_fill(~_may(request, row, at, near), -torch.inf)
        nearest = first(score, min(most, len(near)), _tolerance(row, q, near.expand(len(q), -1)))
        keys = torch.cat([keys, near[nearest].masked_fill(score.gather(1, nearest) == -torch.inf, -1)], 1)
    if not keys.shape[1]:
        return keys
    keys = keys.sort(1, descending=True).values
    size = max(1, CANDIDATES // keys.shape[1])
    pieces = []
    for q_, candidates in zip(q.split(size), keys.split(size), strict=True):
        score = (row.k[candidates.clamp_min(0)] @ q_[..., None]).squeeze(-1).masked_fill(candidates < 0, -torch.inf)
        best = candidates.gather(1, first(score, min(most, score.shape[1]), _tolerance(row, q_, candidates)))
        pieces.append(torch.where(best < 0, -1, row.columns[best.clamp_min(0)]))
    return torch.cat(pieces)


def _tolerance(row: _Row, q: Float[Tensor, "N K"], numbers: Int[Tensor, "N n"]) -> Tolerance:
    """The tolerance of the products of scaled queries with their candidates, keys by number, by a candidate's place."""

    def tolerance(place: Int[Tensor, "N 1"]) -> Float[Tensor, "N 1"]:
        k = row.k[numbers.gather(1, place).clamp_min(0)[:, 0]]
        return tolerance_of(q.norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True))

    return tolerance


def _may(request: Request, row: _Row, at: slice, near: Int[Tensor, " n"]) -> Bool[Tensor, "N n"]:
    """Which of some keys may each query of a block read?"""
    q_pos = request.queries.pos[row.b : row.b + 1]
    q_pos = (q_pos[:, row.heads] if q_pos.shape[1] > 1 else q_pos)[..., at]
    names = range(request.queries.head + row.heads.start, request.queries.head + row.heads.stop)
    number = torch.tensor([row.b], device=row.q.device) if request.rows is None else request.rows[row.b : row.b + 1]
    may = pairs(request.pattern, q_pos, row.pos[near][None, None], names, number)
    return may[0].expand(len(names), -1, -1).flatten(0, 1)
