"""GlobalTokens: a token for each segment of a text, before the text."""

from collections.abc import Iterable
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.own_segment import OwnSegment
from kinformer.patterns.rows import Rows
from kinformer.patterns.shifted import Shifted
from kinformer.patterns.tokens import Tokens


class GlobalTokens(Layer):
    """A layer that reads one sequence of global and long tokens: `n` learned tokens, then x; what comes of x goes out.

    Choose it for a text with structure: global token s stands for segment s of `ctx.below["segment"]` [B T] (0 without
    it), the last one for all that come after, and one without tokens is padding. `layer` sees global tokens at
    positions 0 .. n - 1, x behind them, and the segments of all in `below`: `Band(w) | Tokens(n) | Rows(n)` makes it
    ETC's global-local attention. With `hard=True` a global token reads of x its own segment alone. Limits of a batch
    (`ctx.only`) say nothing of global tokens, so under them x reads none.

    Errors: NoState from `start`. Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.
    """

    def __init__(self, layer: Layer, n: int, *, hard: bool = False):
        super().__init__()
        self.d, self.layer, self.n, self.hard = layer.d, layer, n, hard
        self.token = nn.Parameter(torch.randn(layer.d))

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> NoReturn:
        raise NoState("global tokens read the whole sequence, so nothing goes on from a part of it; use a causal layer")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        known = ctx.below.get("segment", torch.zeros_like(ctx.pos))
        segment = torch.where(ctx.pos >= 0, known.clamp(0, self.n - 1), -1)
        own = torch.arange(self.n, device=x.device)
        own = torch.where((segment[:, None] == own[:, None]).any(-1), own, -1)
        segment, pos = torch.cat([own, segment], 1), torch.cat([own, ctx.pos + self.n * (ctx.pos >= 0)], 1)
        only, also = self._limits(ctx, segment, pos)
        below = {**ctx.below, "segment": segment}
        seen = Context(pos, only=only, also=also, source=ctx.source, source_pos=ctx.source_pos, below=below)
        out = self.layer(torch.cat([self.token.expand(len(x), self.n, -1), x], 1), None, seen)
        aux = {name: value[:, self.n :] if value.dim() else value for name, value in out.aux.items()}
        return Out(out.y[:, self.n :], None, aux, {}, out.stats)

    def _limits(
        self, ctx: Context, segment: Int[Tensor, "B N"], pos: Int[Tensor, "B N"]
    ) -> tuple[Pattern | None, Pattern | None]:
        """What a batch says of its own positions, said of ours; and the hard mask."""
        only = None if ctx.only is None else Shifted(ctx.only, self.n) | Rows(self.n)
        also = None if ctx.also is None else Shifted(ctx.also, self.n)
        if not self.hard:
            return only, also
        # by position: one column more than the last, into which padding falls
        ids = segment.new_full((len(pos), int(pos.max()) + 2), -1)
        ids = ids.scatter(1, torch.where(pos >= 0, pos, ids.shape[1] - 1), segment)
        own = OwnSegment(ids, self.n)
        return own if only is None else only & own, also


def _stack(patterns: Iterable[Pattern]) -> Stack:
    return Stack([PostNorm(Attention(16, 2, Softmax(pattern)), MLP(16)) for pattern in patterns])


EXAMPLES = (
    lambda: GlobalTokens(_stack([Band(2) | Tokens(3) | Rows(3)] * 2), 3),
    lambda: GlobalTokens(_stack([Band(2) | Tokens(3) | Rows(3)] * 2), 3, hard=True),
)
COMPILES = True
