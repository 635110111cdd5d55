"""Sorted chunks: tokens of several rounds in one list, sorted by bucket and cut, and who reads which chunk."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


class Chunks(NamedTuple):
    """A sorted list of items, an item being a token in a round, cut into C chunks of m.

    token, turn: which item stands there, a column of keys and its round; real: whether one does; before: the chunk that
    chunk c looks back at, itself for none; place: where in the list each token stands in each round.
    """

    token: Int[Tensor, "B H C m"]
    turn: Int[Tensor, "B H C m"]
    real: Bool[Tensor, "B H C m"]
    before: Int[Tensor, "B #H C"]
    place: Int[Tensor, "B H R S"]

    def of_every_chunk(self, column: Int[Tensor, "B H T"], there: Bool[Tensor, "B H T"]) -> "Windows":
        """Each chunk with the queries of its items; `column` says where a query's own key stands."""
        batch, heads, count, _ = self.token.shape
        # which query stands at a column of keys: what is no query's goes into one column more, which is dropped
        asks = column.new_full((batch, heads, self.place.shape[3] + 1), -1)
        index = torch.arange(column.shape[2], device=column.device).expand_as(column)
        asks = asks.scatter(2, column.where(there, self.place.shape[3]), index)[..., :-1]
        asks = asks.take_along_dim(self.token.flatten(2), 2).view(self.token.shape).where(self.real, -1)
        chunk = torch.arange(count, device=column.device)[:, None].expand(batch, -1, heads)
        place = self.place.take_along_dim(column[:, :, None], 3)  # [B H R T]
        query, own, turn = (x.transpose(1, 2) for x in (asks, self.token, self.turn))
        return Windows(query, own, turn, chunk, self.before, place)

    def of_every_query(self, column: Int[Tensor, "B H T"], there: Bool[Tensor, "B H T"]) -> "Windows":
        """Each query in each round with its own chunk: a few queries, such as a step's."""
        rounds, length = self.place.shape[2], column.shape[2]
        place = self.place.take_along_dim(column[:, :, None], 3).flatten(2)  # [B H R*T]
        asks = torch.arange(length, device=column.device).where(there, -1).repeat(1, 1, rounds)
        turns = torch.arange(rounds, device=column.device).repeat_interleave(length).expand_as(asks)
        chunk = (place // self.token.shape[3]).transpose(1, 2)
        at = torch.arange(rounds * length, device=column.device).expand_as(asks).unflatten(2, (rounds, length))
        query, own, turn = (x.transpose(1, 2)[..., None] for x in (asks, column.repeat(1, 1, rounds), turns))
        return Windows(query, own, turn, chunk, self.before, at)


class Windows(NamedTuple):
    """N rows of w queries, each row with the keys of one chunk and the chunk before it.

    query: columns of queries, -1 for none; own: the column of the query's own key; turn: the round in which it asks;
    chunk: which one is read; at: where each query's read in each round stands among the N * w.
    """

    query: Int[Tensor, "B N H w"]
    own: Int[Tensor, "B N H w"]
    turn: Int[Tensor, "B N H w"]
    chunk: Int[Tensor, "B N H"]
    before: Int[Tensor, "B #H C"]
    at: Int[Tensor, "B H R T"]

    def look(self, x: Tensor) -> Tensor:
        """[B H C m] to [B N H 2m]: what the chunk before a row's own and its own hold."""
        chunk = self.chunk.transpose(1, 2)  # [B H N]
        both = torch.stack([self._before(), chunk], 3)  # [B H N 2]
        found = x.take_along_dim(both.flatten(2)[..., None], 2)  # [B H N*2 m]
        return found.unflatten(2, both.shape[2:]).flatten(3).transpose(1, 2)

    def keys(self, chunks: Chunks) -> tuple[Int[Tensor, "B N H m2"], Bool[Tensor, "B N H m2"]]:
        """Columns of the keys of each row, and which there are: none twice where a chunk is its own chunk before."""
        there = self.look(chunks.real)
        twice = (self._before() == self.chunk.transpose(1, 2)).transpose(1, 2)[..., None]
        first = torch.arange(there.shape[3], device=there.device) < there.shape[3] // 2
        return self.look(chunks.token), there & ~(twice & first)

    def by_round(self, x: Float[Tensor, "BN H w n"]) -> Float[Tensor, "B H R T n"]:
        """What each query read in each round."""
        rows = x.unflatten(0, self.chunk.shape[:2]).transpose(1, 2).flatten(2, 3)  # [B H N*w n]
        return rows.take_along_dim(self.at.flatten(2)[..., None], 2).unflatten(2, self.at.shape[2:])

    def _before(self) -> Int[Tensor, "B H N"]:
        return self.before.expand(-1, self.chunk.shape[2], -1).take_along_dim(self.chunk.transpose(1, 2), 2)


def sort(bucket: Int[Tensor, "B H S R"], pos: Int[Tensor, "B #H S"], buckets: int, size: int) -> Chunks:
    """Items by (round, bucket, position), padding behind them, in chunks of `size`. Padding is counted nowhere."""
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
    there = (at_place < items[..., None, None]).expand(order.shape)
    used = (items + size - 1) // size
    before = torch.arange(order.shape[2], device=pos.device).expand(*used.shape, -1) - 1
    before = torch.where(before < 0, used[..., None] - 1, before).clamp_min(0)
    return Chunks(order % length, order // length, there, before, place)
