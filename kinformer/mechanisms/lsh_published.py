"""PublishedLSH: Reformer's attention as published, by sorting tokens into buckets and cutting the sorted list."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.bias import ScoreFn, at
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.core.state import carry
from kinformer.execute import attend
from kinformer.mechanisms.lsh import LAST_RESORT, Rotations, no_additions, precise
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full


class PublishedLSH(Keyed):
    """LSH attention at L log L: the tokens of all rounds in one list, sorted by (round, bucket, position) and cut.

    A query reads its own chunk of `chunk` tokens and the one before it, the first reads the last: large buckets are
    truncated. Choose it to reproduce Reformer; `LSH` reads whole buckets and keeps the laws that this one breaks.
    Tokens are placed by their keys, so it wants `projection=SharedQK(d, heads)`. `restricted=False` reads other
    buckets of the two chunks too, `divided=False` counts a key once for each round that finds it: as Hugging Face and
    reformer-pytorch have it; the paper takes log N_ij off the scores, N_ij being counted over chunks of the same
    round. The paper's chunk is 2 L / buckets. Any length will do; padding is sorted behind everything.

    Errors: NoState from `start` where the pattern reads ahead; ValueError with `ctx.also`. A state is a cache of keys,
    sorted anew in every call. Source: Kitaev et al., 2020, arXiv:2001.04451, section 2 and appendix A.
    """

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        chunk: int,
        rounds: int = 1,
        *,
        pattern: Pattern | None = None,
        scale: float | None = None,
        restricted: bool = True,
        divided: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        if chunk < 1:
            raise ValueError(f"chunk={chunk}: a chunk holds at least one token")
        self.hash = Rotations(heads, k_dim, buckets, rounds, seed)
        self.buckets, self.chunk, self.rounds = buckets, chunk, rounds
        self.pattern, self.scale = pattern or Causal(), scale
        self.restricted, self.divided = restricted, divided

    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: State | None,
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Out:
        no_additions(ctx)
        (k, v, k_pos), kept = carry(state, k, v, k_pos, narrowed(self.pattern, ctx.only, None))
        heads, old = q.shape[1], k.shape[2] - q.shape[2]
        chunks = sort(self.hash(k), k_pos, self.buckets, self.chunk)
        k, v = (precise(x).repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
        q_pos = F.pad(ctx.pos, (old, 0), value=-1)
        read = attend(
            chunks.own(F.pad(precise(q), (0, 0, old, 0))),
            chunks.both(k),
            chunks.both(v),
            q_pos=chunks.own(_column(q_pos, heads))[..., 0],
            k_pos=chunks.both(_column(k_pos, heads))[..., 0].masked_fill(~chunks.readable(), -1),
            pattern=self.pattern,
            bias=Truncated(chunks, self.restricted, self.divided),
            scale=self.scale,
            rows=chunks.rows(),
            ctx=ctx,
        )
        assert read.lse is not None
        y, lse = chunks.by_round(read.y), chunks.by_round(read.lse[..., None])
        merged = merge(*(Read(y[:, :, n, old:], lse[:, :, n, old:, 0]) for n in range(self.rounds)))
        return Out(merged._replace(y=merged.y.to(q.dtype)), kept)


class Chunks(NamedTuple):
    """A sorted list of items, an item being a token in a round, cut into C chunks of m.

    token, round: which item stands there; real: whether one does; before: the chunk that chunk c looks back at, itself
    for none; place: where in the list each token stands in each round; bucket: each token's in each round.
    """

    token: Int[Tensor, "B H C m"]
    round: Int[Tensor, "B H C m"]
    real: Bool[Tensor, "B H C m"]
    before: Int[Tensor, "B C"]
    place: Int[Tensor, "B H R S"]
    bucket: Int[Tensor, "B H R S"]

    def own(self, x: Tensor) -> Tensor:
        """[B H S n] to [B*C H m n]: what belongs to the items of each chunk."""
        picked = x.take_along_dim(self.token.flatten(2)[..., None], 2)
        return self.fold(picked.unflatten(2, self.token.shape[2:]))

    def both(self, x: Tensor) -> Tensor:
        """[B H S n] to [B*C H 2m n]: the same for the chunk before and the chunk itself."""
        picked = x.take_along_dim(self.token.flatten(2)[..., None], 2).unflatten(2, self.token.shape[2:])
        return self.fold(torch.cat([self.look_back(picked), picked], 3))

    def look_back(self, x: Tensor) -> Tensor:
        """[B H C m ...]: for each chunk what the chunk before it holds."""
        return x.take_along_dim(self.before.view(len(x), 1, -1, *[1] * (x.dim() - 3)), 2)

    def fold(self, x: Tensor) -> Tensor:
        """[B H C ...] to [B*C H ...]."""
        return x.transpose(1, 2).flatten(0, 1)

    def readable(self) -> Bool[Tensor, "BC H m2"]:
        """Which keys of `both` there are: items, and none twice where a chunk is its own chunk before."""
        alone = self.before == torch.arange(self.before.shape[1], device=self.before.device)
        back = self.look_back(self.real) & ~alone[:, None, :, None]
        return self.fold(torch.cat([back, self.real], 3))

    def rows(self) -> Int[Tensor, " BC"]:
        """The batch row of each folded row."""
        batch, chunks = self.before.shape
        return torch.arange(batch, device=self.before.device).repeat_interleave(chunks)

    def by_round(self, x: Tensor) -> Tensor:
        """[B*C H m n] back to [B H R S n]."""
        items = x.unflatten(0, self.before.shape).transpose(1, 2).flatten(2, 3)
        return items.take_along_dim(self.place.flatten(2)[..., None], 2).unflatten(2, self.place.shape[2:])


def sort(bucket: Int[Tensor, "B H R S"], pos: Int[Tensor, "B S"], buckets: int, size: int) -> Chunks:
    """Items by (round, bucket, position), padding behind them, in chunks of `size`. Padding is counted nowhere."""
    _, _, rounds, length = bucket.shape
    real = pos >= 0
    turn = torch.where(real, pos, torch.iinfo(pos.dtype).max).argsort(1).argsort(1)
    group = torch.arange(rounds, device=pos.device)[:, None] * buckets + bucket
    group = torch.where(real[:, None, None], group, rounds * buckets)
    order = (group * length + turn[:, None, None]).flatten(2).argsort(-1)
    place = order.argsort(-1).unflatten(2, (rounds, length))
    items = real.sum(1) * rounds
    order = F.pad(order, (0, -order.shape[-1] % size)).unflatten(2, (-1, size))
    at_place = torch.arange(order.shape[2] * size, device=pos.device).view(1, 1, -1, size)
    there = (at_place < items[:, None, None, None]).expand(order.shape)
    used = (items + size - 1) // size
    before = torch.arange(order.shape[2], device=pos.device).expand(len(pos), -1) - 1
    before = torch.where(before < 0, used[:, None] - 1, before).clamp_min(0)
    return Chunks(order % length, order // length, there, before, place, bucket)


class Truncated:
    """The score terms of chunks: other buckets shut out, log N_ij off, and the token itself put last."""

    def __init__(self, chunks: Chunks, restricted: bool, divided: bool):
        self.chunks, self.restricted, self.divided = chunks, restricted, divided

    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        c = self.chunks
        size = c.token.shape[3]
        place, bucket = (c.place // size).transpose(2, 3), c.bucket.transpose(2, 3)
        q_place, k_place, q_bucket, k_bucket = c.own(place), c.both(place), c.own(bucket), c.both(bucket)
        q_round, k_round = c.fold(c.round), c.fold(torch.cat([c.look_back(c.round), c.round], 3))

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            q_at, k_at = q_place[b, h, i], k_place[b, h, j]
            same = q_bucket[b, h, i] == k_bucket[b, h, j]
            # the list's ends meet in one round only where there is no other, so the look-back around is no duplicate
            found = (q_at == k_at) | (q_at == k_at + 1)
            if self.restricted:
                here = q_round[b, h, i][..., None]
                found = found & same
                own = (here == k_round[b, h, j][..., None]) & same.take_along_dim(here, -1)
                s = torch.where(own[..., 0], s, -torch.inf)
            if self.divided:
                s = s - found.sum(-1).clamp_min(1).to(s.dtype).log()
            return torch.where(at(q_pos, b, h, i) == at(k_pos, b, h, j), s - LAST_RESORT, s)

        return score


def _column(pos: Int[Tensor, "B S"], heads: int) -> Int[Tensor, "B H S 1"]:
    return pos[:, None, :, None].expand(-1, heads, -1, -1)


EXAMPLES = (
    lambda: PublishedLSH(2, 8, 4, 3, 2),
    lambda: PublishedLSH(2, 8, 4, 2, restricted=False, divided=False, seed=1),
    lambda: PublishedLSH(2, 8, 4, 4, 2, pattern=Full()),
)
BREAKS = {
    "chunk": "the published form sorts all tokens and cuts the list: where a token stands depends on all of them",
    "peek": "later tokens move the borders of the chunks, and with them which earlier keys a query reads",
    "merge": "the list is sorted and cut anew for each set of keys, so pieces are not cut where the whole is",
}
