"""Shifted: a pattern moved by n positions, to make room for n new tokens in front."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layer import Context
from kinformer.core.layout import Layout
from kinformer.core.pattern import And, Heads, Index, Or, Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band


@dataclass(frozen=True)
class Shifted(Pattern):
    """Pattern moved by n positions, for a sequence with n new tokens in front.

    Query i reads key j if i >= n, j >= n, and query i - n reads key j - n under `pattern`.

    Choose it if a layer puts new tokens before the row. Limits of a batch that depend on positions, such as documents,
    then still apply to the same tokens. Pairs with a new token are not in the set; add them by `| Tokens(n) | Rows(n)`.

    pattern: pattern that is moved.
    n: number of new tokens.
    """

    pattern: Pattern
    n: int

    def __post_init__(self) -> None:
        check_pattern("Shifted.pattern", self.pattern)
        check_at_least("Shifted.n", self.n, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        old_pairs = self.pattern(b, h, self._shift_back(q), self._shift_back(k))
        return torch.as_tensor((q >= self.n) & (k >= self.n)) & old_pairs

    def _shift_back(self, x: Index) -> Tensor:
        return (torch.as_tensor(x) - self.n).clamp_min(0)

    @property
    def expression(self) -> Pattern:
        inner = self.pattern.expression
        if isinstance(inner, And | Or):
            return type(inner)(Shifted(inner.left, self.n), Shifted(inner.right, self.n))
        if isinstance(inner, Heads):
            return Heads(*(Shifted(pattern, self.n) for pattern in inner.patterns))
        return self if inner is self.pattern else Shifted(inner, self.n)

    @property
    def layout(self) -> Layout:
        return self.pattern.layout.shift(self.n)

    def reach(self) -> tuple[float, float]:
        return self.pattern.reach()

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return (k >= self.n) & self.pattern.live(self._shift_back(k), self._shift_back(now))

    def capacity(self, length: int) -> int:
        return self.pattern.capacity(max(0, length - self.n))

    def period(self) -> int | None:
        return None if self.n else self.pattern.period()

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        any_pair, every_pair = self.pattern.cover(*(self._shift_back(end) for end in (q_lo, q_hi, k_lo, k_hi)))
        any_old, all_old = (torch.as_tensor((q >= self.n) & (k >= self.n)) for q, k in ((q_hi, k_hi), (q_lo, k_lo)))
        return any_pair & any_old, every_pair & all_old


def shift_context(ctx: Context, n: int) -> Context:
    """Return the context of the same tokens if n new tokens stand before them.

    Positions grow by n, and the limits of the batch move with them; padding stays -1. The new tokens themselves are not
    in the result.

    ctx: context of the tokens without the new ones.
    n: number of new tokens.
    """
    only, also = (None if limit is None else Shifted(limit, n) for limit in (ctx.only, ctx.also))
    pos = ctx.pos + n * (ctx.pos >= 0)
    return ctx.replace(pos=pos, full=ctx.full, only=only, also=also, decoding=ctx.decoding)


EXAMPLES = (Shifted(Causal() & Band(2), 3), Shifted(Heads(Causal(), Band(2, 0)), 3))
