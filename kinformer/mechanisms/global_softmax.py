"""GlobalSoftmax: softmax attention whose global queries read with projections of their own."""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import And, Heads, Not, Or, Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.core.state import KV, carry, start_keys
from kinformer.execute import attend
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.marked import MarkedRows
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens

NONE = Rows(0)


class LocalGlobal(NamedTuple):
    """Keys of the local projections, which all queries but the global ones read, and keys of the global projections."""

    near: KV
    wide: KV


class GlobalSoftmax(Mechanism):
    """Longformer's attention: a cheap pattern for most queries, and a few global ones that read every key.

    Choose it for long texts with a few tokens that must see all of it: a class token, a question.

    The pairs of `rows` (`Rows(n)`, in a decoder `Causal() & Rows(n)`), and of `MarkedRows` or `Marked` in `ctx.also`,
    are read with global queries, keys and values; all other pairs of `(pattern | also) & only` with the layer's own,
    so a local query reads a global token by the local projections: put `Tokens(n)` into the pattern, or use `Marked`.
    The global projections are the layer's `sides`, which no rotary turns; with grouped heads, the keys and values of a
    group are the mean of its heads'. The paper starts them as copies of the local ones; a new layer does not.

    It decodes under causal patterns, with `ctx.only=Causal()` where `ctx.also` is given (the same in every call);
    global keys have a cache of their own, and all of them are kept while a global query may come.
    Errors: NoState where a pattern reads ahead; ValueError for a `ctx.also` of which it cannot tell the global rows,
    and for keys of another sequence (cross-attention, a memory).
    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    def __init__(self, pattern: Pattern, rows: Pattern = NONE, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.pattern, self.rows, self.scale, self.dropout = pattern, rows, scale, dropout

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        return {"q": k_dim, "k": k_dim, "v": v_dim}

    def start(
        self,
        batch: int,
        length: int,
        key_heads: int,
        k_dim: int,
        v_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> LocalGlobal:
        return LocalGlobal(
            start_keys(self.pattern, batch, length, key_heads, k_dim, v_dim, dtype=dtype, device=device),
            start_keys(self.rows, batch, length, key_heads, k_dim, v_dim, dtype=dtype, device=device),
        )

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
        _check_own_keys(k_pos, ctx.pos)
        rows = self.rows if ctx.also is None else self.rows | rows_of(ctx.also)
        near = narrowed(self.pattern, ctx.only, ctx.also) & Not(rows)  # ~ cannot be compiled
        wide = narrowed(rows, ctx.only, None)
        k_wide, v_wide = (sides[name].unflatten(1, (k.shape[1], -1)).mean(2) for name in ("k", "v"))
        old_near, old_wide = (None, None) if state is None else state
        read_near, kept_near = self._read(q, k, v, k_pos, old_near, ctx.pos, near)
        read_wide, kept_wide = self._read(sides["q"], k_wide, v_wide, k_pos, old_wide, ctx.pos, wide)
        kept = None if kept_near is None or kept_wide is None else LocalGlobal(kept_near, kept_wide)
        return Out(merge(read_near, read_wide), kept)

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, k_pos: Tensor, state: KV | None, pos: Tensor, pattern: Pattern
    ) -> tuple[Read, KV | None]:
        (k, v, k_pos), kept = carry(state, k, v, k_pos, pattern)
        read = attend(
            q,
            k,
            v,
            q_pos=pos[:, None],
            k_pos=k_pos[:, None],
            pattern=pattern,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        return read, kept


def rows_of(also: Pattern) -> Pattern:
    """The pairs of a batch's additions that global queries read: its `MarkedRows` and `Rows`."""
    found: list[Pattern] = [leaf for leaf in _union(also) if isinstance(leaf, MarkedRows | Rows)]
    return reduce(Or, found) if found else NONE


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


def _check_own_keys(k_pos: Int[Tensor, "B S"], pos: Int[Tensor, "B T"]) -> None:
    own = k_pos.shape == pos.shape
    if own and not torch.compiler.is_compiling():
        own = bool(((k_pos == pos) | (k_pos < 0)).all())
    if not own:
        raise ValueError(
            "GlobalSoftmax got keys of another sequence than its queries, but makes global keys from the layer's own "
            "input; use Softmax for cross-attention and with a memory"
        )


EXAMPLES = (
    lambda: GlobalSoftmax(Band(2) | Tokens(2), Rows(2)),
    lambda: GlobalSoftmax(Causal() & (Band(2) | Tokens((0, 5))), Causal() & Rows((0, 5))),
    lambda: GlobalSoftmax(Causal() & Band(3), scale=0.5),
)
COMPILES = True
