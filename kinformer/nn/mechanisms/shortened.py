"""Shortened: attention to fewer keys, each computed from several tokens."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_optional_part, check_part
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, cut
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV, LAST, update_cache
from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.projection import Projection
from kinformer.core.scores.product import Product
from kinformer.core.shorten import Shorten
from kinformer.core.token_positions import next_positions
from kinformer.nn.mechanisms.null_key import NullKey
from kinformer.nn.mechanisms.softmax import Softmax

__all__ = ["Shortened"]

HELD = Causal()  # lets a cache keep every key; the mechanism decides which of them are read


class Stairs:
    """Rearrangement of causal attention to shortened keys, so that fused kernels need no mask.

    Query i = 0, 1, .. reads the first floor((i + 1) / size) keys, and also a null key if there is one. Each run of
    `size` queries reads the same keys, and the next run reads one more. `fold` makes one head of the first queries of
    all runs, another of the second queries, and so on. In each head, query n reads keys 0 to n, as under a plain
    `Causal()`. The fused kernels need no mask for it, and skip the half that is not read.

    length: number of queries.
    size: number of queries in a run, which is the number of tokens of a shortened key.
    null: True if a null key stands before the keys.
    """

    def __init__(self, length: int, size: int, null: bool):
        self.length, self.size = length, size
        # without a null key the first queries read nothing; with it they read it, after one empty place
        self.skipped, self.before = (0, 1) if null else (min(size - 1, length), 0)
        self.missing = -(length - self.skipped + self.before) % size
        self.rows = (length - self.skipped + self.before + self.missing) // size

    def fold(self, queries: Queries, keys: Keys) -> tuple[Queries, Keys]:
        """Return the queries, rearranged into `size` times as many heads, and the keys that they read."""
        q = F.pad(queries.q[:, :, self.skipped :], (0, 0, self.before, self.missing))
        q = q.unflatten(2, (self.rows, self.size)).transpose(2, 3).flatten(1, 2)  # [B H*size rows K]
        pos = torch.arange(self.rows, device=q.device).expand(len(q), 1, -1)
        return Queries(q, pos), Keys(keys.k[:, :, : self.rows], keys.v[:, :, : self.rows], pos)

    def unfold(self, read: AttentionOutput) -> AttentionOutput:
        """Move the attention output of folded queries back to the original heads and queries."""
        lse = None if read.lse is None else self._unfold_heads(read.lse[..., None], -torch.inf)[..., 0]
        return AttentionOutput(self._unfold_heads(read.y, 0.0), lse)

    def _unfold_heads(self, x: Float[Tensor, "B Hs R N"], nothing: float) -> Float[Tensor, "B H T N"]:
        x = x.unflatten(1, (-1, self.size)).transpose(2, 3).flatten(2, 3)
        x = x[:, :, self.before : self.before + self.length - self.skipped]
        return F.pad(x, (0, 0, self.skipped, 0), value=nothing)


class OpenGroup(NamedTuple):
    """Assignment of kept and new keys to groups of tokens in decoding with `Shortened`.

    Each group becomes one shortened key. A forward computes the assignment once for all layers.

    order: indices (columns) of kept and new keys in the order of positions, padding last, [B, N].
    pos: positions in that order, [B, 1, N].
    ends: last position of each complete group, [B, R]; -1 for none.
    left: indices, in that order, of the tokens of the incomplete last group, [B, C].
    left_pos: positions of the tokens of that group, [B, C]; -1 for none.
    now: next position of each row, [B].
    """

    order: Int[Tensor, "B N"]
    pos: Int[Tensor, "B 1 N"]
    ends: Int[Tensor, "B R"]
    left: Int[Tensor, "B C"]
    left_pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]

    @classmethod
    def from_positions(
        cls, open_pos: Int[Tensor, "B C"], now: Int[Tensor, " B"], new: Int[Tensor, "B T"], size: int
    ) -> "OpenGroup":
        """Return the assignment of tokens to groups from the positions of kept and new keys.

        open_pos: positions of the kept keys, [B, C]; -1 for none.
        now: next position of each row before the call, [B].
        new: positions of the new keys, [B, T]; -1 for padding.
        size: number of tokens in a group.
        """
        order, pos = sort_positions(torch.cat([open_pos, new.to(open_pos.dtype)], 1))
        length = pos.shape[1]
        count = (pos >= 0).sum(1, keepdim=True)
        left = count // size * size + torch.arange(size - 1, device=pos.device)  # [B C]
        at = left.clamp_max(max(length - 1, 0))
        left_pos = torch.where(left < count, pos.take_along_dim(at, 1), -1)
        ends = F.pad(pos, (0, -length % size), value=-1)[:, size - 1 :: size]
        return cls(order, pos[:, None], ends, at, left_pos, next_positions(now, new))


def sort_positions(pos: Int[Tensor, "B S"]) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """Return the indices that sort positions, with padding last, and the sorted positions.

    pos: positions, [B, S]; -1 for padding.
    """
    order = torch.where(pos < 0, LAST, pos).argsort(dim=1, stable=True)
    return order, pos.take_along_dim(order, 1)


class ShortenedState(NamedTuple):
    """Decoding state of `Shortened`.

    short: shortened keys of complete groups.
    rest: keys of the incomplete group.
    """

    short: KV
    rest: KV


class ShortKeys(Keys):
    """Keys that are already shortened, so that `Shortened` leaves them unchanged."""


class Shortened(Mechanism):
    """Attention to shortened keys, which are pooled, convolved or projected from several tokens.

    y = attention(q, shorten(k, v))

    The cost is T times the length of the shortened row. Choose it for long rows in which no exact single token matters:
    `Linformer` for encoders; `MeanPooled`, `MaxPooled` and `ConvShortener` also for decoders. The pattern of the
    mechanism applies to the positions of shortened keys. Under `Causal()` a query reads complete groups of tokens, and
    the first queries read nothing or the null key. It can then be decoded: the decoding state keeps one shortened key
    for each `size` tokens, and the keys of the incomplete group.

    mechanism: attention mechanism over the shortened keys, such as `Softmax(Full())`.
    shorten: part that makes fewer keys, such as `MeanPooled(4)`.
    null: learned key and value that all queries also read, such as `NullKey(heads, head_dim)`.

    Errors: NoState (no decoding state exists) from `start` if a key depends on later tokens; ValueError for `ctx.only`
    and `ctx.also`, which limit single tokens, and for positions by head.

    Source: Wang et al., 2020, arXiv:2006.04768; Liu et al., 2018, arXiv:1801.10198, section 4.2.3.
    """

    def __init__(self, mechanism: Mechanism, shorten: Shorten, null: NullKey | None = None):
        super().__init__()
        self.mechanism = check_part("mechanism", mechanism, Mechanism, "a mechanism, such as Softmax(Full())")
        self.shorten = check_part("shorten", shorten, Shorten, "a shortener, such as MeanPooled(4)")
        self.null = check_optional_part("null", null, NullKey, "a null key, such as NullKey(heads, head_dim)")
        self.wants, self.sends = mechanism.wants, mechanism.sends

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return self.mechanism.query_extras(sizes)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return self.mechanism.key_extras(sizes)

    def project_keys(self, projection: Projection, x: Float[Tensor, "B T D"], ctx: Context) -> Keys | None:
        # a state of groups needs the tokens of the last group
        if self.shorten.group is not None or ctx.only is not None or ctx.also is not None:
            return None
        pos = ctx.by_head
        if not (ctx.run and ctx.full):
            order, pos = self._sort_row(pos, ctx)
            x = cut(x, order, 1)
        few = self.shorten.mix_before_projection(projection, x, pos, ctx.full)
        return None if few is None else ShortKeys(*few)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        if sizes.cross:
            return self.mechanism.start(spec, sizes)
        group = self.shorten.group
        if group is None or not isinstance(self.mechanism, KeyValueMechanism):
            name = type(self.mechanism if group else self.shorten).__name__
            raise NoState(
                f"{name} cannot be decoded with a cache here, because each key is made of several tokens of the "
                "whole sequence. Use the mechanism without a shortener, Softmax(Causal()) over MeanPooled or "
                "ConvShortener groups that are counted from the first token, or generate(..., recompute=True)"
            )
        self.mechanism.start(spec._replace(batch=0), sizes)  # raises NoState if the mechanism cannot be decoded
        extras = self.mechanism.key_extras(sizes)
        short, rest = (
            KV.empty(spec, sizes, slots, extras, lambda keys: {}) for slots in (spec.length // group + 1, group - 1)
        )
        return ShortenedState(short, rest)

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[AttentionOutput]:
        if keys is None or not keys.own:
            short = None if keys is None else self._with_null(self._of_row(keys, ctx))
            return self.mechanism(queries, short, state, ctx.replace(run=False, full=False))
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "ctx.only and ctx.also limit single tokens, but a shortened key is made of several tokens. "
                "Leave out both"
            )
        short, new_state = keys, None
        if not isinstance(keys, ShortKeys):
            short, new_state = (
                (self._of_row(keys, ctx), None) if state is None else self._extend(queries, keys, state, ctx)
            )
        if ctx.remember:
            return Out(AttentionOutput(queries.q[..., :0], None), new_state)
        short = self._with_null(short)
        if state is None and self._can_use_stairs(ctx) and (stairs := self._make_stairs(queries)).rows:
            return Out(self._read_stairs(stairs, queries, short, ctx))
        # positions of shortened keys are not consecutive, and a row of padding has no keys
        full = ctx.full and state is None and self.shorten.gapless and queries.pos.shape[2] > 0
        return self.mechanism(queries, short, None, ctx.replace(run=False, full=full))._replace(state=new_state)

    def shorten_keys(self, keys: Keys) -> Keys:
        """Return the shortened keys of keys that are sorted by position."""
        return self.shorten(keys)

    def _of_row(self, keys: Keys, ctx: Context) -> Keys:
        """Return the shortened keys of a whole row."""
        if keys.pos.shape[1] != 1:
            raise ValueError(
                f"Shortened got positions by head {list(keys.pos.shape)}. Pass keys with positions that all heads share"
            )
        if not (keys.own and ctx.run and ctx.full):
            order, pos = self._sort_row(keys.pos, ctx)
            keys = keys.cut(order)._replace(pos=pos)
        short = self.shorten_keys(keys)
        if self.shorten.group is None:
            return short
        # all layers share one object
        return short._replace(pos=ctx.memo.get(lambda: short.pos, "shortened", keys.pos, self.shorten.group))

    def _sort_row(self, pos: Int[Tensor, "B 1 S"], ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the columns of a row in the order of their positions, padding last, and these positions."""
        return ctx.memo.get(lambda: _by_head(*sort_positions(pos[:, 0])), "in order", pos)

    def _extend(self, queries: Queries, keys: Keys, state: ShortenedState, ctx: Context) -> tuple[Keys, ShortenedState]:
        """Return the shortened keys of earlier and new tokens, and the state after the call."""
        cache, rest = state
        if not keys.k.shape[2]:
            return cache.keys(ctx.memo.by_head(cache.pos)), state
        size = self.shorten.group
        assert size is not None
        plan = ctx.memo.get(
            lambda: OpenGroup.from_positions(rest.pos, rest.now, ctx.pos, size),
            "open group",
            rest.pos,
            rest.now,
            ctx.pos,
            size,
        )
        tokens = _append(rest, keys).cut(plan.order)._replace(pos=plan.pos)
        # the plan's own position objects tell the next call that layers share them
        left = KV.from_keys(tokens.cut(plan.left), rest)._replace(pos=plan.left_pos, now=plan.now)
        whole = self.shorten_keys(tokens)._replace(pos=ctx.memo.by_head(plan.ends))
        at = ctx.replace(pos=plan.ends, run=False, full=False, labels={}, memo=ctx.memo)
        short, new_cache = update_cache(cache, whole, queries, HELD, at)
        assert new_cache is not None
        return short, ShortenedState(new_cache._replace(now=plan.now), left)

    def _with_null(self, short: Keys) -> Keys:
        return short if self.null is None else self.null(short)

    def _can_use_stairs(self, ctx: Context) -> bool:
        """True if `Stairs` applies: no padding, groups, and plain causal softmax attention."""
        mechanism = self.mechanism
        plain = (
            type(mechanism) is Softmax
            and mechanism.bias is None
            and type(mechanism.score) is Product
            and mechanism.pattern == Causal()
        )
        return plain and self.shorten.group is not None and ctx.run and ctx.full

    def _make_stairs(self, queries: Queries) -> Stairs:
        assert self.shorten.group is not None
        return Stairs(queries.q.shape[2], self.shorten.group, self.null is not None)

    def _read_stairs(self, stairs: Stairs, queries: Queries, short: Keys, ctx: Context) -> AttentionOutput:
        assert isinstance(self.mechanism, Softmax)
        stair_queries, stair_keys = stairs.fold(queries, short)
        request, _ = self.mechanism.make_request(
            stair_queries, stair_keys, None, ctx.replace(pos=stair_queries.pos[:, 0], labels={})
        )
        return stairs.unfold(self.mechanism.read(request).y)


def _append(old: KV, keys: Keys) -> Keys:
    """Append new keys to kept keys, with keys, values and extras only."""

    def append(before: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
        return torch.cat([before.to(behind.dtype), behind], 2)

    extras = {name: append(side, keys.extras[name]) for name, side in old.extras.items()}
    return Keys(append(old.k, keys.k), append(old.v, keys.v), append(old.pos[:, None], keys.pos), extras)


def _by_head(order: torch.Tensor, pos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return order, pos[:, None]


_APART = {"merge": "a key is made of several tokens, so two halves of a row have other keys than the whole row"}
_LAST = {"peek": "groups are counted from the last token, so each new token moves them and changes all outputs"}
_NULL = {"empty_rows": "a query that may read no other key reads the null key"}


def _examples() -> tuple[Example, ...]:
    makes = (
        lambda: Shortened(Softmax(Causal()), kf.MeanPooled(2)),
        lambda: Shortened(Softmax(kf.Full()), kf.MaxPooled(3)),
        lambda: Shortened(Softmax(kf.Full()), kf.Linformer(96, 4)),
    )
    with_null = Example(
        lambda: Shortened(Softmax(Causal()), kf.ConvShortener(3, 8, heads=2), NullKey(2, 8)), _APART | _NULL
    )
    counted_back = Example(lambda: Shortened(Softmax(Causal()), kf.MeanPooled(3, align="last")), _APART | _LAST)
    return *(Example(make, _APART) for make in makes), with_null, counted_back


EXAMPLES = _examples()
