"""GlobalTokens: a token for each segment of a text, before the text."""

from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import a_part, at_least
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, PerToken, State, Want
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.patterns.own_segment import OwnSegment
from kinformer.patterns.rows import Rows


class GlobalTokens(Layer):
    """A layer that reads one sequence of global and long tokens: `n` learned tokens, then x; what comes of x goes out.

    Choose it for a text with structure: global token s stands for segment s of `ctx.labels["segment"]` [B T] (0 without
    it), the last one for all that come after, and one without tokens is padding. The layer sees global tokens at
    positions 0 .. n - 1, x behind them, and the segments of all among its labels: `Band(w) | Tokens(n) | Rows(n)` makes
    it ETC's global-local attention. Limits of a batch (`ctx.only`) say nothing of global tokens, so under them x reads
    none.

    layer: what reads both.
    n: how many global tokens there are.
    hard: a global token reads of x its own segment alone.

    Errors: NoState from `start`. Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.
    """

    def __init__(self, layer: Layer, n: int, *, hard: bool = False):
        super().__init__()
        self.layer = a_part("layer", layer, Layer, "a layer, such as Stack([PostNorm(Attention(...), MLP(d))])")
        self.d, self.n, self.hard = layer.d, at_least("n", n, 1), hard
        self.token = nn.Parameter(torch.randn(layer.d))

    @property
    def wants(self) -> tuple[Want, ...]:  # type: ignore[override]
        return self.layer.wants

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("global tokens read the whole sequence, so nothing goes on from a part of it; use a causal layer")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        known = ctx.labels.get("segment", torch.zeros_like(ctx.pos))
        segment = torch.where(ctx.pos >= 0, known.clamp(0, self.n - 1), -1)
        own = torch.arange(self.n, device=x.device)
        own = torch.where((segment[:, None] == own[:, None]).any(-1), own, -1)
        seen = self._behind(ctx, own, torch.cat([own, segment], 1))
        out = self.layer(torch.cat([self.token.expand(len(x), self.n, -1), x], 1), None, seen)
        aux = {name: value[:, self.n :] if value.dim() else value for name, value in out.aux.items()}
        taps = {name: value[:, self.n :] for name, value in out.taps.items()}
        return Out(out.y[:, self.n :], None, aux, {}, out.stats, taps)

    def _behind(self, ctx: Context, own: Int[Tensor, "B G"], segment: Int[Tensor, "B N"]) -> Context:
        """The context of a row with global tokens before it, at positions `own`; of them a batch says nothing."""
        seen = ctx.shifted(self.n)
        pos = torch.cat([own, seen.pos], 1)
        only = None if seen.only is None else seen.only | Rows(self.n)
        if self.hard:
            hard = self._own_segment(ctx, segment, pos)
            only = hard if only is None else only & hard
        labels = {name: F.pad(label, (self.n, 0)) for name, label in ctx.labels.items()}
        below = {
            name: PerToken(F.pad(value.value, (*[0, 0] * (value.value.dim() - 2), self.n, 0)))
            for name, value in ctx.below.items()
            if isinstance(value, PerToken)
        }
        return seen.but(
            pos=pos,
            only=only,
            labels={**labels, "segment": segment},
            below=below,
            run=False,
            full=False,
            remember=False,
        )

    def _own_segment(self, ctx: Context, segment: Int[Tensor, "B N"], pos: Int[Tensor, "B N"]) -> Pattern:
        (last,) = ctx.memo.look(pos.amax())
        # by position: one column more than the last, into which padding falls
        ids = segment.new_full((len(pos), last + 2), -1)
        return OwnSegment(ids.scatter(1, torch.where(pos >= 0, pos, last + 1), segment), self.n)


def _example(hard: bool) -> GlobalTokens:
    from kinformer.attention import Attention
    from kinformer.blocks.post_norm import PostNorm
    from kinformer.depth.stack import Stack
    from kinformer.feedforward.mlp import MLP
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.patterns.band import Band
    from kinformer.patterns.tokens import Tokens
    from kinformer.projections.qkv import QKV

    pattern = Band(2) | Tokens(3) | Rows(3)
    blocks = [PostNorm(Attention(QKV(16, 2), Softmax(pattern)), MLP(16)) for _ in range(2)]
    return GlobalTokens(Stack(blocks), 3, hard=hard)


EXAMPLES = (lambda: _example(False), lambda: _example(True))
