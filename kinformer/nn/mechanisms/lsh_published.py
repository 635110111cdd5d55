"""PublishedLSH: Reformer's attention as published, with tokens sorted by bucket and cut into chunks."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.example import Example
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.scores.product import Product
from kinformer.core.unrepeatable import Unrepeatable
from kinformer.nn.mechanisms.key_groups import (
    LAST_RESORT,
    by_query_head,
    check_no_limits,
    gather_columns,
    gather_positions,
    own_column,
    own_pairs,
)
from kinformer.nn.mechanisms.lsh import Hashed, in_float32

__all__ = ["PublishedLSH"]


class HashChunks(NamedTuple):
    """Sorted list of items, cut into C chunks of m items. An item is a token in one hash round.

    `sort` makes the list for `PublishedLSH`.

    token, turn: index of the token in the row (column), and hash round, of each item, [B, H, C, m].
    real: False at places without an item, [B, H, C, m].
    before: number of the chunk that chunk c reads besides itself, [B, #H, C]; c if there is no other chunk.
    place: place in the list of each token's item in each round, [B, H, R, S].
    """

    token: Int[Tensor, "B H C m"]
    turn: Int[Tensor, "B H C m"]
    real: Bool[Tensor, "B H C m"]
    before: Int[Tensor, "B #H C"]
    place: Int[Tensor, "B H R S"]

    def of_every_chunk(self, column: Int[Tensor, "B H T"], has_key: Bool[Tensor, "B H T"]) -> "ChunkWindows":
        """Return a window for each chunk, with the queries of the tokens in the chunk.

        column: index of each query's own key in the key tensor, [B, H, T].
        has_key: False for queries without a key of their own, [B, H, T].
        """
        batch, heads, count, _ = self.token.shape
        # the query at each column of keys; one extra column, dropped later, takes queries without a key
        asks = column.new_full((batch, heads, self.place.shape[3] + 1), -1)
        index = torch.arange(column.shape[2], device=column.device).expand_as(column)
        asks = asks.scatter(2, column.where(has_key, self.place.shape[3]), index)[..., :-1]
        asks = asks.take_along_dim(self.token.flatten(2), 2).view(self.token.shape).where(self.real, -1)
        chunk = torch.arange(count, device=column.device)[:, None].expand(batch, -1, heads)
        place = self.place.take_along_dim(column[:, :, None], 3)  # [B H R T]
        query, key_column, turn = (x.transpose(1, 2) for x in (asks, self.token, self.turn))
        return ChunkWindows(query, key_column, turn, chunk, self.before, place)

    def of_every_query(self, column: Int[Tensor, "B H T"], has_key: Bool[Tensor, "B H T"]) -> "ChunkWindows":
        """Return a window for each query and round, for calls with few queries such as a decoding step.

        column, has_key: as in `of_every_chunk`.
        """
        rounds, length = self.place.shape[2], column.shape[2]
        place = self.place.take_along_dim(column[:, :, None], 3).flatten(2)  # [B H R*T]
        asks = torch.arange(length, device=column.device).where(has_key, -1).repeat(1, 1, rounds)
        turns = torch.arange(rounds, device=column.device).repeat_interleave(length).expand_as(asks)
        chunk = (place // self.token.shape[3]).transpose(1, 2)
        at = torch.arange(rounds * length, device=column.device).expand_as(asks).unflatten(2, (rounds, length))
        query, key_column, turn = (x.transpose(1, 2)[..., None] for x in (asks, column.repeat(1, 1, rounds), turns))
        return ChunkWindows(query, key_column, turn, chunk, self.before, at)


class ChunkWindows(NamedTuple):
    """N windows of w queries each; a window reads the keys of one chunk and the chunk before it.

    query: indices (columns) of the queries in the row, [B, N, H, w]; -1 for none.
    key_column: indices (columns) of the queries' own keys, [B, N, H, w].
    turn: hash round of each query, [B, N, H, w].
    chunk: chunk that each window reads, [B, N, H].
    before: chunk before each chunk, [B, #H, C].
    at: place of each query in each round among the N * w places of all windows, [B, H, R, T].
    """

    query: Int[Tensor, "B N H w"]
    key_column: Int[Tensor, "B N H w"]
    turn: Int[Tensor, "B N H w"]
    chunk: Int[Tensor, "B N H"]
    before: Int[Tensor, "B #H C"]
    at: Int[Tensor, "B H R T"]

    def look(self, x: Tensor) -> Tensor:
        """Gather for each window the items of x in the previous chunk and in its own: [B H C m] to [B N H 2m]."""
        chunk = self.chunk.transpose(1, 2)  # [B H N]
        pair = torch.stack([self._previous_chunks(), chunk], 3)  # [B H N 2]
        items = x.take_along_dim(pair.flatten(2)[..., None], 2)  # [B H N*2 m]
        return items.unflatten(2, pair.shape[2:]).flatten(3).transpose(1, 2)

    def keys(self, chunks: HashChunks) -> tuple[Int[Tensor, "B N H m2"], Bool[Tensor, "B N H m2"]]:
        """Return the indices (columns) of the keys of each window, and a mask of the real ones.

        If a chunk is its own previous chunk, its keys count only once.
        """
        is_key = self.look(chunks.real)
        twice = (self._previous_chunks() == self.chunk.transpose(1, 2)).transpose(1, 2)[..., None]
        first = torch.arange(is_key.shape[3], device=is_key.device) < is_key.shape[3] // 2
        return self.look(chunks.token), is_key & ~(twice & first)

    def by_round(self, x: Float[Tensor, "BN H w n"]) -> Float[Tensor, "B H R T n"]:
        """Return the output of each query in each round.

        x: outputs of the queries of all windows, [B*N, H, w, n].
        """
        rows = x.unflatten(0, self.chunk.shape[:2]).transpose(1, 2).flatten(2, 3)  # [B H N*w n]
        return rows.take_along_dim(self.at.flatten(2)[..., None], 2).unflatten(2, self.at.shape[2:])

    def _previous_chunks(self) -> Int[Tensor, "B H N"]:
        return self.before.expand(-1, self.chunk.shape[2], -1).take_along_dim(self.chunk.transpose(1, 2), 2)


def sort(bucket: Int[Tensor, "B H S R"], pos: Int[Tensor, "B #H S"], buckets: int, size: int) -> HashChunks:
    """Sort items by round, bucket and position, with padding last, and cut the list into chunks.

    Padding does not count as an item.

    bucket: bucket of each key in each round, [B, H, S, R].
    pos: positions of the keys, [B, #H, S]; -1 for padding.
    buckets: number of buckets in a round.
    size: number of items in a chunk.
    """
    length, rounds = bucket.shape[2:]
    real = pos >= 0
    turn = torch.where(real, pos, torch.iinfo(pos.dtype).max).argsort(-1).argsort(-1)  # rank by position [B #H S]
    group = torch.arange(rounds, device=pos.device)[:, None] * buckets + bucket.mT  # [B H R S]
    group = torch.where(real[:, :, None], group, rounds * buckets)
    order = (group * length + turn[:, :, None]).flatten(2).argsort(-1)
    place = order.argsort(-1).unflatten(2, (rounds, length))
    items = real.sum(-1) * rounds  # [B #H]
    order = F.pad(order, (0, -order.shape[-1] % size)).unflatten(2, (-1, size))
    at_place = torch.arange(order.shape[2] * size, device=pos.device).view(-1, size)
    is_item = (at_place < items[..., None, None]).expand(order.shape)
    used = (items + size - 1) // size
    before = torch.arange(order.shape[2], device=pos.device).expand(*used.shape, -1) - 1
    before = torch.where(before < 0, used[..., None] - 1, before).clamp_min(0)
    return HashChunks(order % length, order // length, is_item, before, place)


class PublishedLSH(Hashed):
    """Reformer's LSH attention with cost L log L, which sorts tokens by bucket and cuts them into chunks.

    The list holds the tokens of all rounds, sorted by (round, bucket, position). A query reads its own chunk and the
    chunk before it; the first chunk reads the last one. A query therefore misses keys of large buckets. Choose it to
    reproduce Reformer. Choose `LSH` otherwise: it reads whole buckets and keeps laws (tested properties, such as no use
    of later tokens) that this form breaks.

    Tokens are sorted by the buckets of their keys, so it needs equal queries and keys, `SharedQK(d, heads)`, and
    self-attention. Rows may have any length, and padding is sorted last. The decoding state is a cache of keys and
    their buckets, which every call sorts again. A decoding step reads two chunks in each round.

    heads: number of query heads; each has its own hashes.
    k_dim: width of a query and a key.
    buckets: number of buckets in a round; even.
    chunk: number of tokens in a chunk; 2 L / buckets in the paper.
    rounds, eval_rounds, redraw, pattern, scale, seed: as in `LSH`.
    restricted: False also reads other buckets of the two chunks, as Hugging Face does.
    divided: True subtracts log N_ij from the scores, as in the paper. N_ij is the number of rounds in which query i
        finds key j in its chunks. False counts a key once for each round that finds it, as Hugging Face and
        reformer-pytorch do.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys; ValueError with `ctx.also`
    or `ctx.only`, for a layer with another number of heads, and for keys of another sequence.

    Source: Kitaev et al., 2020, arXiv:2001.04451, section 2 and appendix A.
    """

    received_attention = Mechanism.received_attention  # the weights in chunks differ from the weights under the pattern
    unrepeatable = Unrepeatable(
        "PublishedLSH sorts and cuts the tokens of each call anew", "leave out chunk= of reformer"
    )

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        chunk: int,
        rounds: int = 1,
        *,
        eval_rounds: int | None = None,
        redraw: int | None = None,
        pattern: Pattern | None = None,
        scale: float | None = None,
        restricted: bool = True,
        divided: bool = True,
        seed: int = 0,
    ):
        super().__init__(
            heads,
            k_dim,
            buckets,
            rounds,
            eval_rounds=eval_rounds,
            redraw=redraw,
            pattern=pattern,
            scale=scale,
            seed=seed,
        )
        self.chunk = check_at_least("chunk", chunk, 1)
        self.restricted, self.divided = check_flag("restricted", restricted), check_flag("divided", divided)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        if sizes.cross:
            raise ValueError(self._other_sequence_message())
        return super().start(spec, sizes)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        if keys is None or not keys.own:
            raise ValueError(self._other_sequence_message())
        check_no_limits(self, ctx, "chunks", "LSH")
        return super().preprocess(queries, keys, ctx)

    def read(self, request: Request) -> Out[AttentionOutput]:
        dtype, request = request.queries.q.dtype, in_float32(request)
        chunks = sort(self._key_buckets(request), request.keys.pos, self.buckets, self.chunk)
        column, has_key = (x.expand(-1, request.queries.q.shape[1], -1) for x in own_column(request))
        windows = (chunks.of_every_query if self._has_few_queries(request) else chunks.of_every_chunk)(column, has_key)
        of_windows = read(self._fold_windows(request, chunks, windows))
        assert of_windows.lse is not None
        y, lse = (
            windows.by_round(of_windows.y),
            windows.by_round(of_windows.lse[..., None])[..., 0],
        )  # [B H R T V], [B H R T]
        lse = lse.where(has_key[:, :, None], -torch.inf)  # a query without its own key has no place in the list
        merged = merge(*(AttentionOutput(y[:, :, n], lse[:, :, n]) for n in range(y.shape[2])))
        return Out(merged._replace(y=merged.y.to(dtype)))

    def _has_few_queries(self, request: Request) -> bool:
        """True if two chunks for each query and round cost less than all chunks."""
        return request.queries.q.shape[2] * self.chunk < request.keys.k.shape[2]

    def _key_buckets(self, request: Request) -> Int[Tensor, "B H S R"]:
        return by_query_head(request.keys.tags["bucket"], request.queries.q.shape[1])

    def _fold_windows(self, request: Request, chunks: HashChunks, windows: ChunkWindows) -> Request:
        """Return a request with each window as a row of the batch."""
        queries, keys = request.queries, request.keys
        chunk, bucket = (chunks.place // self.chunk).transpose(2, 3), self._key_buckets(request)  # [B H S R]
        column, is_key = windows.keys(chunks)
        query, item = windows.query.clamp_min(0), windows.key_column
        q_turn, k_turn = (turn.flatten(0, 1)[..., None] for turn in (windows.turn, windows.look(chunks.turn)))
        q_tags = {"chunk": gather_columns(chunk, item), "bucket": gather_columns(bucket, item), "round": q_turn}
        k_tags = {"chunk": gather_columns(chunk, column), "bucket": gather_columns(bucket, column), "round": k_turn}
        return request.regroup(
            queries=Queries(
                gather_columns(queries.q, query),
                gather_positions(queries.pos, query, windows.query >= 0),
                head=queries.head,
                tags=q_tags,
            ),
            keys=Keys(
                gather_columns(keys.k, column),
                gather_columns(keys.v, column),
                gather_positions(keys.pos, column, is_key),
                tags=k_tags,
            ),
            score=ChunkScore(self.restricted, self.divided),
            lse=True,
            rows=torch.arange(len(column), device=column.device).repeat_interleave(column.shape[1]),
        )

    def _other_sequence_message(self) -> str:
        name = type(self).__name__
        return (
            f"{name} sorts queries together with their own keys, but got keys of another sequence. Use LSH or Softmax"
        )


class ChunkScore(Score):
    """Score of `PublishedLSH`: dot product in its chunks. A token's score of itself is lowered by 1e5.

    restricted: True masks keys of other buckets.
    divided: True subtracts log N_ij, with N_ij the number of rounds in which query i finds key j.
    """

    def __init__(self, restricted: bool, divided: bool):
        super().__init__()
        self.restricted, self.divided, self.product = restricted, divided, Product()

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        score, q, k = self.product(request), request.queries.tags, request.keys.tags
        rounds = range(q["bucket"].shape[-1])
        q_round, k_round = q["round"], k["round"][..., None, :, 0]  # [B H T 1], [B H 1 S]
        shares_round, count = torch.zeros_like(score, dtype=torch.bool), torch.zeros_like(score)
        for n in rounds:
            q_at, k_at = q["chunk"][..., None, n], k["chunk"][..., None, :, n]
            # both ends of the list are in one round only if there is one round, so the wrapped chunk adds no duplicate
            is_near = (q_at == k_at) | (q_at == k_at + 1)
            if self.restricted:
                same = q["bucket"][..., None, n] == k["bucket"][..., None, :, n]
                is_near, shares_round = is_near & same, shares_round | (same & (q_round == n) & (k_round == n))
            count = count + is_near
        if self.restricted:
            score = score.masked_fill(~shares_round, -torch.inf)
        if self.divided:
            score = score - count.clamp_min(1).log()
        return torch.where(own_pairs(request), score - LAST_RESORT, score)


def _examples() -> tuple[Example, ...]:
    chunk = (
        "the published form sorts all tokens and cuts the list into chunks, so the chunk of a token depends on all "
        "tokens"
    )
    peek = "later tokens move the borders of the chunks and so change the earlier keys that a query reads"
    merged = (
        "the list is sorted and cut again for each set of keys, so a part of the keys has other chunks than the whole"
    )
    gradients = "cuts change the keys that a query reads, and so its gradients"
    causal = {"chunk": chunk, "gradients": gradients, "peek": peek, "merge": merged}
    return (
        Example(lambda: PublishedLSH(2, 8, 4, 3, 2, eval_rounds=3, redraw=2), breaks=causal),
        Example(lambda: PublishedLSH(2, 8, 4, 2, restricted=False, divided=False, seed=1), breaks=causal),
        Example(lambda: PublishedLSH(2, 8, 4, 4, 2, pattern=Full()), breaks={"merge": merged}),
    )


EXAMPLES = _examples()
