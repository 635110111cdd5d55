"""GlobalSoftmax: softmax attention whose global queries read with projections of their own."""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from kinformer.core.cache import KV
from kinformer.core.checks import a_pattern
from kinformer.core.heads import Keys, Queries, Room, Side, Sizes
from kinformer.core.keyed import no_peeking
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import And, Heads, Not, Or, Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.marked import MarkedRows
from kinformer.patterns.rows import Rows

NONE = Rows(0)


class LocalGlobal(NamedTuple):
    """Keys of the local projections, which all queries but the global ones read, and keys of the global projections."""

    near: KV
    wide: KV


class GlobalSoftmax(Mechanism):
    """Longformer's attention: a cheap pattern for most queries, and a few global ones that read every key.

    Choose it for long texts with a few tokens that must see all of it: a class token, a question. The pairs of `rows`,
    and of `MarkedRows` or `Marked` in `ctx.also`, are read with queries, keys and values of global projections; all
    other pairs of `(pattern | also) & only` with the layer's own. A local query reads a global token by the local
    projections: put `Tokens(n)` into the pattern, or use `Marked`.

    The global projections are sides of the layer, start as copies of its own, and are not turned by a rotation. In
    decoding their keys have a cache of their own, in which all are kept while a global query may come; `ctx.also` then
    wants `ctx.only=Causal()`, the same in every call. In cross-attention global queries read the whole source.

    pattern: which keys a query reads that is not global.
    rows: which queries are global in every row, `Rows(n)`, or `Causal() & Rows(n)` in a decoder; none unless given.
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
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        self.pattern, self.rows = a_pattern("pattern", pattern), a_pattern("rows", rows)
        self.near = _Near(pattern, rows, scale=scale, dropout=dropout, impl=impl)
        self.wide = _Wide(rows, scale=scale, dropout=dropout, impl=impl)

    def sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return {"q": Side(sizes.k_dim, like="q")}

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return {"k": Side(sizes.k_dim, like="k"), "v": Side(sizes.v_dim, like="v")}

    def start(self, room: Room, sizes: Sizes) -> LocalGlobal:
        if not sizes.cross:
            no_peeking(self.pattern)  # by the pattern that was given, which its refusal shows
        return LocalGlobal(self.near.start(room, sizes), self.wide.start(room, sizes))

    def forward(self, queries: Queries, keys: Keys | None, state: LocalGlobal | None, ctx: Context) -> Out[Read]:
        wide, wide_keys = queries._replace(sides={}), keys
        if not ctx.remember:  # then nobody asks
            wide = wide._replace(q=queries.sides["q"])
        if keys is not None:
            wide_keys = keys._replace(k=keys.sides["k"], v=keys.sides["v"], sides={})
            keys = keys._replace(sides={})
        near_out = self.near(queries, keys, None if state is None else state.near, ctx)
        wide_out = self.wide(wide, wide_keys, None if state is None else state.wide, ctx)
        kept = None if state is None else LocalGlobal(near_out.state, wide_out.state)
        return Out(near_out.y if ctx.remember else merge(near_out.y, wide_out.y), kept)


class _Near(Softmax):
    """All pairs but those that global queries read."""

    def __init__(self, pattern: Pattern, rows: Pattern, *, scale: float | None, dropout: float, impl: str):
        super().__init__(_but(pattern, rows), scale=scale, dropout=dropout, impl=impl)
        self.whole, self.rows = pattern, rows

    def limited(self, ctx: Context) -> Pattern:
        def make() -> Pattern:
            return _but(narrowed(self.whole, ctx.only, ctx.also), _global_rows(self.rows, ctx))

        return ctx.memo.get(make, "near", self.whole, self.rows)


class _Wide(Softmax):
    """The pairs that global queries read."""

    def limited(self, ctx: Context) -> Pattern:
        return ctx.memo.get(
            lambda: narrowed(_global_rows(self.pattern, ctx), ctx.only, None), "global rows", self.pattern
        )


def rows_of(also: Pattern) -> Pattern:
    """The pairs of a batch's additions that global queries read: its `MarkedRows` and `Rows`."""
    found: list[Pattern] = [leaf for leaf in _union(also) if isinstance(leaf, MarkedRows | Rows)]
    return reduce(Or, found) if found else NONE


def _global_rows(rows: Pattern, ctx: Context) -> Pattern:
    return rows if ctx.also is None else rows | rows_of(ctx.also)


def _but(pattern: Pattern, rows: Pattern) -> Pattern:
    return pattern if rows is NONE else pattern & Not(rows)  # ~ cannot be compiled


def _union(pattern: Pattern) -> list[Pattern]:
    pattern = pattern.expression
    if isinstance(pattern, Or):
        return _union(pattern.left) + _union(pattern.right)
    if isinstance(pattern, And | Not | Heads):
        raise ValueError(
            f"GlobalSoftmax cannot tell which queries ctx.also={pattern} makes global; "
            "give a union (|) of Marked, MarkedRows, Rows and patterns of keys, and put limits into ctx.only"
        )
    return [pattern]


def _encoder() -> GlobalSoftmax:
    from kinformer.patterns.band import Band
    from kinformer.patterns.tokens import Tokens

    return GlobalSoftmax(Band(2) | Tokens(2), Rows(2))


def _decoder() -> GlobalSoftmax:
    from kinformer.patterns.band import Band
    from kinformer.patterns.causal import Causal
    from kinformer.patterns.tokens import Tokens

    return GlobalSoftmax(Causal() & (Band(2) | Tokens((0, 5))), Causal() & Rows((0, 5)))


def _local() -> GlobalSoftmax:
    from kinformer.patterns.band import Band
    from kinformer.patterns.causal import Causal

    return GlobalSoftmax(Causal() & Band(3), scale=0.5)


EXAMPLES = (_encoder, _decoder, _local)
