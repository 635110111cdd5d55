"""GlobalSoftmax: softmax attention with separate projections for global queries (Longformer)."""

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

__all__ = ["GlobalSoftmax"]
NONE = Rows(0)
Part = TypeVar("Part", Queries, Keys)


class FewRows(NamedTuple):
    """Places of the global queries in each row of `GlobalSoftmax`, the same number R for every row.

    places: indices of the queries in the row, [B, R]. Other queries fill up a row that has fewer global ones.
    pos: positions of these queries, [B, 1, R].
    alone: True if these queries have no keys in the local attention, so its outputs for them may be overwritten.
    """

    places: Int[Tensor, "B R"]
    pos: Int[Tensor, "B 1 R"]
    alone: bool

    def make_queries(self, queries: Queries, q: Float[Tensor, "B H R K"]) -> Queries:
        """Return the queries at these places, with `q` as their query vectors."""
        return queries.cut(self.places)._replace(q=q, pos=self.pos)

    def insert(self, read: AttentionOutput, few: AttentionOutput) -> AttentionOutput:
        """Merge the output of the few queries into the output of the whole row.

        read: attention output of all queries of the row.
        few: attention output of the queries at `places`.
        """
        assert read.lse is not None
        if not self.alone:
            few = merge(AttentionOutput(cut(read.y, self.places, 2), cut(read.lse, self.places, 2)), few)
        assert few.lse is not None
        at = self.places[:, None].expand(-1, read.y.shape[1], -1)  # [B H R]
        y, lse = few.y.to(read.y.dtype), few.lse.to(read.lse.dtype)  # autocast may give them different dtypes
        return AttentionOutput(read.y.scatter(2, at[..., None].expand_as(y), y), read.lse.scatter(2, at, lse))


def few_rows(own_pairs: Pattern, other_pairs: Pattern, pos: Int[Tensor, "B T"]) -> FewRows:
    """Return the `FewRows` of the queries that have keys in `own_pairs`, the pairs of global queries.

    own_pairs: (query, key) pairs that only the few global queries read.
    other_pairs: pairs of the local attention, which decide `FewRows.alone`.
    pos: positions of the queries, [B, T]; -1 for padding.
    """

    def reads_any_key(pattern: Pattern, at: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        q = at.clamp_min(0)
        return pattern.cover(q, q, 0 * q, pos.amax().clamp_min(0))[0] & (at >= 0)

    reads_own = reads_any_key(own_pairs, pos)
    max_rows = max(1, int(reads_own.sum(1).amax()))  # at least one, so that the global projections always get gradients
    places = reads_own.int().sort(dim=1, descending=True, stable=True).indices[:, :max_rows]
    at = pos.gather(1, places)
    return FewRows(places, at[:, None], not bool(reads_any_key(other_pairs, at).any()))


def of_values(read: AttentionOutput, v: LazyProjection) -> Float[Tensor, "B H R V"]:
    """Turn weighted means of the layer's input into weighted means of values; no keys give 0.

    read: attention output in which y is a weighted mean of inputs, [B, H, R, D], with its lse (log-sum-exp).
    v: lazy projection from inputs to values.
    """
    assert read.lse is not None
    return torch.where(read.lse[..., None] > -torch.inf, v.project_mean(read.y), 0.0)


class GlobalSoftmaxState(NamedTuple):
    """Decoding state of `GlobalSoftmax`: key-value caches of the local and the global attention.

    near: keys of the layer's own projections, for local queries.
    wide: keys of the global projections, for global queries.
    """

    near: KV
    wide: KV


class GlobalSoftmax(Mechanism):
    """Longformer's attention: a narrow pattern for most queries, and global queries that read every key.

    y = merge(attention over pattern & ~rows with q, k, v; attention over rows with q_g, k_g, v_g)

    Choose it for long texts in which a few tokens, such as a class token or a question, must see the whole text. The
    cost is the number of pairs in both attentions. A narrow pattern also saves cache in decoding if no global query can
    occur.

    The pairs of `rows`, and of `Marked`, `MarkedRows` or `Tail` in `ctx.also` (pairs added in one call), use the global
    projections for queries, keys and values. All other pairs of `(pattern | also) & only` use the layer's own
    projections. A local query reads a global token with the local projections: put `Tokens(n)` into the pattern, or use
    `Marked`.

    The global projections are extra projections of the layer, and rotary embeddings do not rotate them. In decoding
    their keys have a separate cache, which keeps all keys while a global query can occur. `ctx.also` then needs
    `ctx.only=Causal()`, the same in every call. In cross-attention, global queries read the whole source. With
    `Rows(n)`, this class is also the form of ETC in which the type of the query selects the projections of its keys
    (`etc`).

    If few queries of a row are global and there is no bias, global queries read the layer's input directly. Global
    keys and values are then not computed, because q_g.(W x) = (W^T q_g).x. In training, a layer with one global token
    projects four matrices instead of seven.

    pattern: keys that a local query reads.
    rows: queries that are global in every row, such as `Rows(n)`, or `Causal() & Rows(n)` in a decoder; none by
        default.
    bias: bias that changes the scores, the same in both attentions.
    copied: True initialises the global projections as copies of the local ones, as in the paper; False independently.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops.
    impl: name of an executor, a way to compute attention; "auto" selects the one with the lowest estimated cost.

    Errors: NoState (no decoding state exists) from `start` if a pattern allows later keys; ValueError if `ctx.also`
    does not show which queries are global.

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
        self.near = LocalSoftmax(pattern, rows, bias, scale=scale, dropout=dropout, impl=impl)
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
            check_reads_no_future(self.pattern)  # the error message shows the user's own pattern
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
        if not ctx.remember:  # with `remember`, only the state is needed, and queries are placeholders
            queries, (q,) = split_extras(queries, "global_q")
            wide = queries._replace(q=q)
        if keys is not None:
            keys, (k, v) = split_extras(keys, "global_k", "global_v")
            wide_keys = keys._replace(k=k, v=v)
        near_out = self.near(queries, keys, None if state is None else state.near, ctx)
        wide_out = self.wide(wide, wide_keys, None if state is None else state.wide, ctx)
        new_state = None if state is None else GlobalSoftmaxState(near_out.state, wide_out.state)
        # both reads share the bias, so one report is enough
        return Out(near_out.y if ctx.remember else merge(near_out.y, wide_out.y), new_state, near_out.aux)

    def _read_few_rows(self, queries: Queries, keys: Keys, ctx: Context) -> Out[AttentionOutput]:
        """Read the layer's input with a few global queries: q.(W x) = (W^T q).x, without global keys or values."""
        few, unmade = self._global_queries(ctx), {**queries.lazy, **keys.lazy}
        queries, keys = queries._replace(lazy={}), keys._replace(lazy={})
        near, _ = self.near.prepare_request(queries, keys, None, ctx)
        if few.alone and ctx.also is None:
            near = near.replace(
                pattern=narrow_pattern(self.pattern, ctx.only, None)
            )  # excluding these few rows costs more than reading them
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
        """Return the queries that may be global."""
        near, wide = self.near.batch_pattern(ctx), self.wide.batch_pattern(ctx)
        return ctx.memo.get(lambda: few_rows(wide, near, ctx.pos), "global queries", near, wide, ctx.pos)


class LocalSoftmax(Softmax):
    """Read of all pairs that global queries do not read.

    pattern: keys that a local query reads.
    rows: queries that are global in every row.
    bias: bias that changes the scores.
    """

    def __init__(self, pattern: Pattern, rows: Pattern, bias: Bias | None, **settings: Any):
        super().__init__(_without_rows(pattern, rows), bias, **settings)
        self.whole, self.rows = pattern, rows

    def batch_pattern(self, ctx: Context) -> Pattern:
        def make() -> Pattern:
            return _without_rows(narrow_pattern(self.whole, ctx.only, ctx.also), _global_rows(self.rows, ctx))

        return ctx.memo.get(make, "near", self.whole, self.rows)


class _Wide(Softmax):
    """Read of the pairs that global queries read."""

    def batch_pattern(self, ctx: Context) -> Pattern:
        return ctx.memo.get(
            lambda: narrow_pattern(_global_rows(self.pattern, ctx), ctx.only, None), "global rows", self.pattern
        )


def split_extras(part: Part, *names: str) -> tuple[Part, list[Tensor]]:
    """Remove some extra projections from queries or keys, and return the rest and the removed tensors.

    part: queries or keys.
    names: names of the extra projections to remove.
    """
    rest = {name: side for name, side in part.extras.items() if name not in names}
    return part._replace(extras=rest), [part.extras[name] for name in names]


def rows_of(also: Pattern) -> Pattern:
    """Return the pairs of global queries among a batch's additional pairs, as one pattern.

    It is the union of all `MarkedRows`, `TailRows` and `Rows` in `also`. Patterns that `GlobalNodes` or `GlobalTokens`
    have shifted stay shifted.

    also: pattern of `ctx.also`, the pairs that a batch adds.
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
            f"GlobalSoftmax cannot tell which queries ctx.also={pattern} makes global. Pass a union (|) of "
            "Marked, MarkedRows, Rows and patterns of keys, and put limits into ctx.only"
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
