"""GlobalSoftmax: softmax attention whose global queries read with projections of their own."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.bias import Bias
from kinformer.core.checks import check_flag
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, LazyProjection, Queries, StateSpec, cut
from kinformer.core.key_value_mechanism import check_reads_no_future
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.module_hooks import has_hooks
from kinformer.core.pattern import And, Heads, Not, Or, Pattern, check_pattern, narrow_pattern
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.marked import MarkedRows
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.tail import TailRows

NONE = Rows(0)
Part = TypeVar("Part", Queries, Keys)


class FewRows(NamedTuple):
    """As many places in every row, those of its queries among them, and their positions.

    `alone`: they read nothing beside what is theirs, so whatever stands in their place may be overwritten.
    """

    places: Int[Tensor, "B R"]
    pos: Int[Tensor, "B 1 R"]
    alone: bool

    def make_queries(self, queries: Queries, q: Float[Tensor, "B H R K"]) -> Queries:
        """These queries, asking q."""
        return queries.cut(self.places)._replace(q=q, pos=self.pos)

    def insert(self, read: AttentionOutput, few: AttentionOutput) -> AttentionOutput:
        """The read of a row, in which these queries read their own too."""
        assert read.lse is not None
        if not self.alone:
            few = merge(AttentionOutput(cut(read.y, self.places, 2), cut(read.lse, self.places, 2)), few)
        assert few.lse is not None
        at = self.places[:, None].expand(-1, read.y.shape[1], -1)  # [B H R]
        y, lse = few.y.to(read.y.dtype), few.lse.to(read.lse.dtype)  # autocast makes some of them wider than others
        return AttentionOutput(read.y.scatter(2, at[..., None].expand_as(y), y), read.lse.scatter(2, at, lse))


def few_rows(own_pairs: Pattern, other_pairs: Pattern, pos: Int[Tensor, "B T"]) -> FewRows:
    """The rows that may read a pair of `own_pairs`; `other_pairs` are read otherwise."""

    def reads_any_key(pattern: Pattern, at: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        q = at.clamp_min(0)
        return pattern.cover(q, q, 0 * q, pos.amax().clamp_min(0))[0] & (at >= 0)

    reads_own = reads_any_key(own_pairs, pos)
    max_rows = max(1, int(reads_own.sum(1).amax()))  # one at least, so that what is learned has gradients
    places = reads_own.int().sort(dim=1, descending=True, stable=True).indices[:, :max_rows]
    at = pos.gather(1, places)
    return FewRows(places, at[:, None], not bool(reads_any_key(other_pairs, at).any()))


def of_values(read: AttentionOutput, v: LazyProjection) -> Float[Tensor, "B H R V"]:
    """The y of values, from that of what they are made of; 0 where there was no key."""
    assert read.lse is not None
    return torch.where(read.lse[..., None] > -torch.inf, v.project_mean(read.y), 0.0)


class GlobalSoftmaxState(NamedTuple):
    """Keys of the local projections, which all queries but the global ones read, and keys of the global projections."""

    near: KV
    wide: KV


class GlobalSoftmax(Mechanism):
    """Longformer's attention: a narrow pattern for most queries, and a few global ones that read every key.

    Choose it for long texts with a few tokens that must see all of it: a class token, a question. Both reads cost what
    their pairs cost; a narrow pattern saves cache in decoding too, where no global query may come. The pairs of `rows`,
    and of `Marked`, `MarkedRows` or `Tail` in `ctx.also`, are read with queries, keys and values of global projections;
    all other pairs of `(pattern | also) & only` with the layer's own. A local query reads a global token by the local
    projections: put `Tokens(n)` into the pattern, or use `Marked`.

    The global projections are sides of the layer and are not turned by a rotation. In decoding their keys have a cache
    of their own, in which all are kept while a global query may come; `ctx.also` then wants `ctx.only=Causal()`, the
    same in every call. In cross-attention global queries read the whole source. With `Rows(n)` it is also the form of
    ETC in which the reader decides by what projections its keys are made (`etc`).

    y = merge(read of pattern & ~rows with q, k, v; read of rows with q_g, k_g, v_g).

    Where few queries of a row are global and there is no bias, they read what keys and values are made of, and these
    are not made: q_g.(W x) is (W^T q_g).x. In training a layer of one global token then projects four matrices and not
    seven.

    pattern: which keys a query reads that is not global.
    rows: which queries are global in every row, `Rows(n)`, or `Causal() & Rows(n)` in a decoder; none unless given.
    bias: a change of the scores, the same in both reads.
    copied: whether the global projections start as copies of the local ones, as in the paper; False starts them anew.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of attention weights that training drops.
    impl: an executor by name; "auto" takes the cheapest.

    Errors: NoState where a pattern reads ahead; ValueError for a `ctx.also` of which it cannot tell the global rows.
    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    def __init__(
        self,
        pattern: Pattern,
        rows: Pattern = NONE,
        bias: Bias | None = None,
        *,
        copied: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        self.pattern, self.rows = check_pattern("pattern", pattern), check_pattern("rows", rows)
        self.copied = check_flag("copied", copied)
        self.near = _Near(pattern, rows, bias, scale=scale, dropout=dropout, impl=impl)
        self.wide = _Wide(rows, bias, scale=scale, dropout=dropout, impl=impl)
        self.wants = self.near.wants

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {**self.near.query_extras(sizes), "global_q": self._extra_projection(sizes.k_dim, "q")}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        wide = {
            "global_k": self._extra_projection(sizes.k_dim, "k"),
            "global_v": self._extra_projection(sizes.v_dim, "v"),
        }
        return {**self.near.key_extras(sizes), **wide}

    def _extra_projection(self, width: int, like: str) -> ExtraProjection:
        return ExtraProjection(width, like if self.copied else None)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> GlobalSoftmaxState:
        if not sizes.cross:
            check_reads_no_future(self.pattern)  # by the pattern that was given, which its refusal shows
        return GlobalSoftmaxState(self.near.start(spec, sizes), self.wide.start(spec, sizes))

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        if self.near.bias is not None or not ctx.pos.numel() or ctx.pos.is_meta or any(map(has_hooks, self.modules())):
            return False
        return 2 * sizes.heads * self._global_queries(ctx).places.shape[1] <= sizes.key_heads * sizes.k_dim

    def forward(
        self, queries: Queries, keys: Keys | None, state: GlobalSoftmaxState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        if keys is not None and keys.lazy:
            return self._read_few_rows(queries, keys, ctx)
        wide, wide_keys = queries, keys
        if not ctx.remember:  # then nobody asks
            queries, (q,) = split_extras(queries, "global_q")
            wide = queries._replace(q=q)
        if keys is not None:
            keys, (k, v) = split_extras(keys, "global_k", "global_v")
            wide_keys = keys._replace(k=k, v=v)
        near_out = self.near(queries, keys, None if state is None else state.near, ctx)
        wide_out = self.wide(wide, wide_keys, None if state is None else state.wide, ctx)
        new_state = None if state is None else GlobalSoftmaxState(near_out.state, wide_out.state)
        # what the bias reports is of the same sides in both reads
        return Out(near_out.y if ctx.remember else merge(near_out.y, wide_out.y), new_state, near_out.aux)

    def _read_few_rows(self, queries: Queries, keys: Keys, ctx: Context) -> Out[AttentionOutput]:
        """A few global queries read the layer's input: q.(W x) = (W^T q).x, so no global key or value is made."""
        few, unmade = self._global_queries(ctx), {**queries.lazy, **keys.lazy}
        queries, keys = queries._replace(lazy={}), keys._replace(lazy={})
        near, _ = self.near.prepare_request(queries, keys, None, ctx)
        if few.alone and ctx.also is None:
            near = near.replace(
                pattern=narrow_pattern(self.pattern, ctx.only, None)
            )  # their holes in it cost more than they do
        q, x = unmade["global_q"].cut(few.places).materialize(), unmade["global_k"].x[:, None]
        key_queries, constant = unmade["global_k"].absorb_queries(q)
        wide, _ = self.wide.prepare_request(few.make_queries(queries, key_queries), keys._replace(k=x, v=x), None, ctx)
        scale = q.shape[3] ** -0.5 if self.wide.scale is None else self.wide.scale
        read = self.wide.read_with_aux(wide.replace(scale=scale, run=False, full=False)).y
        assert read.lse is not None
        lse = read.lse if constant is None else read.lse + scale * constant
        return Out(
            few.insert(self.near.read_with_aux(near).y, AttentionOutput(of_values(read, unmade["global_v"]), lse))
        )

    def _global_queries(self, ctx: Context) -> FewRows:
        """The queries that may be global."""
        near, wide = self.near.batch_pattern(ctx), self.wide.batch_pattern(ctx)
        return ctx.memo.get(lambda: few_rows(wide, near, ctx.pos), "global queries", near, wide, ctx.pos)


class _Near(Softmax):
    """All pairs but those that global queries read."""

    def __init__(self, pattern: Pattern, rows: Pattern, bias: Bias | None, **settings: Any):
        super().__init__(_without_rows(pattern, rows), bias, **settings)
        self.whole, self.rows = pattern, rows

    def batch_pattern(self, ctx: Context) -> Pattern:
        def make() -> Pattern:
            return _without_rows(narrow_pattern(self.whole, ctx.only, ctx.also), _global_rows(self.rows, ctx))

        return ctx.memo.get(make, "near", self.whole, self.rows)


class _Wide(Softmax):
    """The pairs that global queries read."""

    def batch_pattern(self, ctx: Context) -> Pattern:
        return ctx.memo.get(
            lambda: narrow_pattern(_global_rows(self.pattern, ctx), ctx.only, None), "global rows", self.pattern
        )


def split_extras(part: Part, *names: str) -> tuple[Part, list[Tensor]]:
    """Queries or keys without some of their extras, and these."""
    rest = {name: side for name, side in part.extras.items() if name not in names}
    return part._replace(extras=rest), [part.extras[name] for name in names]


def rows_of(also: Pattern) -> Pattern:
    """The pairs of a batch's additions that global queries read: its `MarkedRows`, `TailRows` and `Rows`.

    They stay moved where `GlobalNodes` or `GlobalTokens` put tokens of their own before the text.
    """
    row_patterns: list[Pattern] = [
        leaf for leaf in _union(also) if isinstance(_strip_shifts(leaf), MarkedRows | TailRows | Rows)
    ]
    return reduce(Or, row_patterns) if row_patterns else NONE


def _strip_shifts(pattern: Pattern) -> Pattern:
    while isinstance(pattern, Shifted):
        pattern = pattern.pattern
    return pattern


def _global_rows(rows: Pattern, ctx: Context) -> Pattern:
    return rows if ctx.also is None else rows | rows_of(ctx.also)


def _without_rows(pattern: Pattern, rows: Pattern) -> Pattern:
    return pattern if rows is NONE else pattern & Not(rows)  # ~ cannot be compiled


def _union(pattern: Pattern) -> list[Pattern]:
    pattern = pattern.expression
    if isinstance(pattern, Or):
        return _union(pattern.left) + _union(pattern.right)
    if isinstance(_strip_shifts(pattern), And | Not | Heads):
        raise ValueError(
            f"GlobalSoftmax cannot tell which queries ctx.also={pattern} makes global; "
            "give a union (|) of Marked, MarkedRows, Rows and patterns of keys, and put limits into ctx.only"
        )
    return [pattern]


def _encoder() -> GlobalSoftmax:
    return GlobalSoftmax(kf.Band(2) | kf.Tokens(2), Rows(2))


def _decoder() -> GlobalSoftmax:
    return GlobalSoftmax(kf.Causal() & (kf.Band(2) | kf.Tokens((0, 5))), kf.Causal() & Rows((0, 5)))


def _local() -> GlobalSoftmax:
    return GlobalSoftmax(kf.Causal() & kf.Band(3), scale=0.5)


def _labelled() -> GlobalSoftmax:
    pattern = kf.Causal() & kf.Band(3)
    return GlobalSoftmax(pattern, kf.Causal() & Rows((0, 4)), kf.Relative(8, 2), copied=False)


EXAMPLES = (_encoder, _decoder, _local, _labelled)
