"""Attention within groups by sorting: queries and keys are sorted by group and computed in tiles."""

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.function_transforms import is_transformed
from kinformer.core.heads import Keys, Queries
from kinformer.core.pattern import pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.nn.mechanisms.key_groups import LAST_RESORT, SameGroupScore, groups_of, own_column

FEW = 1 << 16  # up to this many pairs per row and head, reads are dense without a look at the groups
PAIR, TOKEN = 1.25, 200  # cost of a pair and of a token in each round, in pairs of the dense form
CALL = 1 << 17  # cost of a call, in pairs


def read_groups(request: Request, groups: int) -> AttentionOutput:
    """Return the attention within groups (`SameGroupScore`), computed densely or in sorted tiles.

    The way with the lower estimated cost is used.

    The sorted way waits once for the device, and its permutations have no rule for function transforms. Compiled graphs
    and transformed functions are therefore computed densely.

    request: attention call with its queries and keys and their group numbers (tags).
    groups: number of groups in a round (one of several groupings).
    """
    pairs = request.queries.q.shape[2] * request.keys.k.shape[2]
    if torch.compiler.is_compiling() or is_transformed() or pairs <= FEW:
        return read(request)
    rounds = sort_rounds(request, groups)
    if sum(PAIR * sorted_round.pairs + TOKEN * request.queries.q.shape[2] for sorted_round in rounds) > pairs:
        return read(request)
    return read_sorted(request, rounds)


class SortedRound(NamedTuple):
    """Queries and keys of one round (grouping), sorted by group and cut into tiles.

    A tile holds the queries and keys of a group in one row and head. Tiles of similar size form a class and are padded
    to one size. The tiles of all classes are stored one after the other, with M queries and W keys in total.

    sizes: for each class, the number of tiles per row and head, and the numbers of queries and keys of a tile.
    query, key: index of the token at each place of the tiles, counted over all rows, heads and tokens; -1 for none.
    q_place, k_place: place in the tiles of each query and key; -1 for none.
    """

    sizes: list[tuple[int, int, int]]  # for each class: tiles per row and head, queries and keys per tile
    query: Int[Tensor, " M"]
    key: Int[Tensor, " W"]
    q_place: Int[Tensor, " B*H*T"]
    k_place: Int[Tensor, " B*H*S"]

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs that the tiles compute for a row and head."""
        return pairs_of(self.sizes)


class SortedTokens(NamedTuple):
    """Queries or keys of one round (grouping), sorted by group within each row and head.

    order: indices of the tokens in the row, in the order of groups, [B, H, T].
    first: first place of each group in that order, [B, H, n].
    many: number of tokens of each group, [B, H, n].
    """

    order: Int[Tensor, "B H T"]
    first: Int[Tensor, "B H n"]
    many: Int[Tensor, "B H n"]

    def tile_tokens(self, tiles: slice, size: int) -> Int[Tensor, "B n H size"]:
        """Return the index, over all rows, heads and tokens, of the token at each place of some tiles.

        It is -1 at places without a token.

        tiles: range of groups.
        size: number of places in a tile.
        """
        batch, heads, length = self.order.shape
        steps = torch.arange(size, device=self.order.device)
        column = self.order.take_along_dim(
            (self.first[..., tiles, None] + steps).clamp_max(length - 1).flatten(2), -1
        ).unflatten(2, (-1, size))
        row = torch.arange(batch * heads, device=column.device).view(batch, heads, 1, 1) * length
        is_filled = steps < self.many[..., tiles, None]
        return torch.where(is_filled, column + row, -1).transpose(1, 2)


def pairs_of(sizes: list[tuple[int, int, int]]) -> int:
    """Return the number of (query, key) pairs in the tiles of a row and head.

    sizes: for each class of tiles the number of tiles, and the queries and keys per tile.
    """
    return sum(count * queries * keys for count, queries, keys in sizes)


def sort_rounds(request: Request, groups: int) -> list[SortedRound]:
    """Sort the queries and keys of each round (grouping) by group; padding comes after all groups.

    request: attention call with its queries and keys and their group numbers (tags).
    groups: number of groups in a round.
    """
    score = request.score
    assert isinstance(score, SameGroupScore) and request.bias is None
    queries, keys = (
        group.where((pos >= 0)[..., None], groups)
        for group, pos in zip(groups_of(request, score.tag), (request.queries.pos, request.keys.pos), strict=True)
    )
    sides = [_sort_sides(q, k, groups) for q, k in zip(queries.unbind(-1), keys.unbind(-1), strict=True)]
    widest = torch.stack([torch.stack([side.many.amax((0, 1)) for side in side_pair]) for side_pair in sides]).tolist()
    rows = queries.shape[0] * queries.shape[1]
    return [
        _make_round(*side_pair, _size_classes(widths[0], widths[1], rows))
        for side_pair, widths in zip(sides, widest, strict=True)
    ]


def _sort_sides(
    query: Int[Tensor, "B H T"], key: Int[Tensor, "B H S"], groups: int
) -> tuple[SortedTokens, SortedTokens]:
    """Sort queries and keys, with the largest groups first and groups without pairs last."""
    sides = []
    for group in (query, key):
        count = group.new_zeros(*group.shape[:2], groups + 1).scatter_add_(-1, group, torch.ones_like(group))
        sides.append(SortedTokens(group.argsort(dim=-1, stable=True), count.cumsum(-1) - count, count))
    of_q, of_k = (side.many[..., :groups] for side in sides)
    rank = ((of_q + of_k) * (of_q > 0) * (of_k > 0)).argsort(dim=-1, descending=True)
    read = (of_q.take_along_dim(rank, -1) > 0) & (of_k.take_along_dim(rank, -1) > 0)
    first = [side.first.take_along_dim(rank, -1) for side in sides]
    many = [side.many.take_along_dim(rank, -1) * read for side in sides]
    q, k = (side._replace(first=f, many=c) for side, f, c in zip(sides, first, many, strict=True))
    return q, k


def _size_classes(queries: list[int], keys: list[int], rows: int) -> list[tuple[int, int, int]]:
    """Combine tiles of similar size, from the sizes of tiles by rank, for `rows` rows and heads."""
    classes: list[tuple[int, int, int]] = []
    for n, (q, k) in enumerate(zip(queries, keys, strict=True)):
        if not q or not k:
            break
        count, most_q, most_k = classes[-1] if classes else (0, 0, 0)
        most_q, most_k = max(q, most_q), max(k, most_k)
        spared = (most_q * most_k - q * k) * rows * (len(queries) - n)
        if classes and (2 * q * k > most_q * most_k or spared < CALL):
            classes[-1] = count + 1, most_q, most_k
        else:
            classes.append((1, q, k))
    return classes


def _make_round(queries: SortedTokens, keys: SortedTokens, sizes: list[tuple[int, int, int]]) -> SortedRound:
    places = []
    ends = [0, *accumulate(count for count, _, _ in sizes)]
    for n, side in enumerate((queries, keys)):
        at = [
            side.tile_tokens(slice(*tiles), size[n + 1]).flatten()
            for tiles, size in zip(pairwise(ends), sizes, strict=True)
        ]
        tokens = torch.cat(at) if at else side.order.new_zeros(0)
        place = torch.full((side.order.numel() + 1,), -1, device=tokens.device)
        # index -1 writes to the last place, which is cut off
        place[tokens] = torch.arange(len(tokens), device=tokens.device)
        places.append((tokens, place[:-1]))
    (query, q_place), (key, k_place) = places
    return SortedRound(sizes, query, key, q_place, k_place)


def read_sorted(request: Request, rounds: list[SortedRound]) -> AttentionOutput:
    """Return the same attention output as the dense form, computed in tiles.

    Tiles become rows of a batch. A pair that shares a group in several rounds counts only in the first of them.

    request: attention call with its queries and keys and their group numbers (tags).
    rounds: result of `sort_rounds`.
    """
    score = request.score
    assert isinstance(score, SameGroupScore) and request.bias is None
    lonely = score.lonely and request.keys.own
    reads = [_read_round(request, sorted_round, score.tag, turn, lonely) for turn, sorted_round in enumerate(rounds)]
    output = merge(*reads) if len(reads) > 1 else reads[0]
    return _with_lonely(request, output) if lonely else output


def _read_round(request: Request, sorted_round: SortedRound, tag: str, turn: int, lonely: bool) -> AttentionOutput:
    """Read the groups of a round, without pairs of earlier rounds and without lonely tokens' own keys."""
    queries, keys = request.queries, request.keys
    batch, heads, length, _ = queries.q.shape
    of_q, of_k = (
        [batch * n * heads * m for n, m, _ in sorted_round.sizes],
        [batch * n * heads * w for n, _, w in sorted_round.sizes],
    )

    def gather_vectors(x: Tensor, tokens: Tensor, place: Tensor, of: list[int]) -> tuple[Tensor, ...]:
        return RowPermutation.apply(_by_query_head(x, heads).flatten(0, 2), tokens, place).split(of)

    def gather_numbers(x: Tensor, tokens: Tensor, of: list[int]) -> tuple[Tensor, ...]:
        return _take_rows(x.expand(-1, heads, -1, -1).flatten(0, 2), tokens, -1).split(of)

    q = gather_vectors(queries.q, sorted_round.query, sorted_round.q_place, of_q)
    k, v = (gather_vectors(x, sorted_round.key, sorted_round.k_place, of_k) for x in (keys.k, keys.v))
    q_pos, k_pos = (
        gather_numbers(queries.pos[..., None], sorted_round.query, of_q),
        gather_numbers(keys.pos[..., None], sorted_round.key, of_k),
    )
    q_tag, k_tag = groups_of(request, tag)
    q_tags, k_tags = gather_numbers(q_tag, sorted_round.query, of_q), gather_numbers(k_tag, sorted_round.key, of_k)
    y, lse = [], []
    for n, (count, m, w) in enumerate(sorted_round.sizes):
        q_, k_, v_, at, of, q_group, k_group = (
            x[n].view(batch * count, heads, size, x[n].shape[-1])
            for x, size in ((q, m), (k, w), (v, w), (q_pos, m), (k_pos, w), (q_tags, m), (k_tags, w))
        )
        tiles = request.regroup(
            queries=Queries(q_, at[..., 0], head=queries.head),
            keys=Keys(k_, v_, of[..., 0], own=keys.own),
            score=Product(),
            lse=True,
            rows=torch.arange(batch, device=q_.device).repeat_interleave(count),
        )
        where = _first_found(tiles, q_group[..., :turn], k_group[..., :turn], lonely)
        of_tile = read(tiles.replace(where=where))
        assert of_tile.lse is not None
        y.append(of_tile.y.flatten(0, 2))
        lse.append(of_tile.lse.flatten()[:, None])
    if not y:
        nothing = queries.q.new_zeros(batch, heads, length, keys.v.shape[3])
        return AttentionOutput(nothing, torch.full_like(nothing[..., 0], -torch.inf))
    shape = batch, heads, length, -1
    whole = RowPermutation.apply(torch.cat(y), sorted_round.q_place, sorted_round.query).view(shape)
    level = RowPermutation.apply(torch.cat(lse), sorted_round.q_place, sorted_round.query, -torch.inf).view(shape)[
        ..., 0
    ]
    return AttentionOutput(whole, level)


class RowPermutation(torch.autograd.Function):
    """Permutation of the rows of x, with a backward pass that only moves gradients.

    The arguments `tokens` and `place` of `apply` give the row at each place (-1 for none) and the place of each row.

    No row occurs twice, so no gradients are summed.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Float[Tensor, "N n"],
        tokens: Int[Tensor, " M"],
        place: Int[Tensor, " N"],
        fill: float = 0.0,
    ) -> Float[Tensor, "M n"]:
        ctx.save_for_backward(place)
        return _take_rows(x, tokens, fill)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _take_rows(gradient, place, 0.0), None, None, None


def _take_rows(x: Float[Tensor, "N n"] | Int[Tensor, "N n"], tokens: Int[Tensor, " M"], fill: float) -> Tensor:
    return x.index_select(0, tokens.clamp_min(0)).masked_fill_((tokens < 0)[:, None], fill)


def _by_query_head(x: Float[Tensor, "B G S n"], heads: int) -> Float[Tensor, "B H S n"]:
    """Repeat the key heads for the query heads that they serve."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _first_found(
    tiles: Request, q_groups: Int[Tensor, "B H T n"], k_groups: Int[Tensor, "B H S n"], lonely: bool
) -> Bool[Tensor, "B #H T S"]:
    """Return the pairs that a round reads: pairs of the pattern without a common group in an earlier round."""
    q, k = tiles.queries.pos[..., :, None], tiles.keys.pos[..., None, :]
    if type(tiles.pattern) is Causal:
        # one comparison per pair: padded keys come after every query, padded queries before every key
        k = k.where(k >= 0, torch.iinfo(k.dtype).max)
        where = k < q if lonely else k <= q
    else:
        heads = range(tiles.queries.head, tiles.queries.head + q.shape[1])
        where = pair_mask(tiles.pattern, tiles.queries.pos, tiles.keys.pos, heads, tiles.rows)
        where = where & (q != k) if lonely else where
    for of_q, of_k in zip(q_groups.unbind(-1), k_groups.unbind(-1), strict=True):
        where = where & (of_q[..., :, None] != of_k[..., None, :])
    return where


def _with_lonely(request: Request, output: AttentionOutput) -> AttentionOutput:
    """Let tokens that found no key read themselves.

    For other tokens the weight of the own key would be exp(-1e5), which is 0.
    """
    queries, keys = request.queries, request.keys
    heads = queries.q.shape[1]
    column, has_key = (x.expand(-1, heads, -1) for x in own_column(request))
    assert output.lse is not None
    b, h, t = ((output.lse == -torch.inf) & has_key).nonzero(as_tuple=True)
    pos = queries.pos.expand(-1, heads, -1)[b, h, t]
    may = request.pattern(b, queries.head + h, pos, pos).expand(len(b))
    b, h, t = (x[may] for x in (b, h, t))
    at = column[b, h, t]
    k, v = (x[b, h // (heads // x.shape[1]), at] for x in (keys.k, keys.v))
    score = (queries.q[b, h, t] * k).sum(-1) * request.scale - LAST_RESORT
    return AttentionOutput(
        output.y.index_put((b, h, t), v), output.lse.index_put((b, h, t), score.to(output.lse.dtype))
    )
