"""AdaptiveSpan: each head learns how far it looks; DynamicSpan: each head decides it for each token."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, of_heads
from kinformer.core.checks import at_least, one_of, within
from kinformer.core.heads import Side, Sizes
from kinformer.core.loss import Penalty
from kinformer.core.read import precise
from kinformer.core.request import Request

Nearest = Literal[0, 1]


class Ramp(Bias):
    """A soft window: weights times m(x) = clamp((ramp + z - x) / ramp, 0, 1), renormalised; subclasses give the span z.

    longest: the largest span, in positions.
    ramp: the width of the soft edge, in positions; 32 in the paper.
    nearest: x of the nearest key: 0 makes x = |i - j|, 1 makes it |i - j| - 1.
    itself: False keeps a query from reading its own position.
    """

    def __init__(self, longest: int, *, ramp: float = 32.0, nearest: Nearest = 0, itself: bool = True):
        super().__init__()
        self.longest, self.ramp = at_least("longest", longest, 1), within("ramp", ramp, 1, math.inf)
        self.nearest, self.itself = one_of("nearest", nearest, Nearest), itself

    @abstractmethod
    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        """z, in positions, for each query; in float32 or better, as bfloat16 cannot tell span 256 from 257."""

    def bind(self, piece: Request) -> ScoreFn:
        q, q_pos, k_pos = piece.queries.q, piece.queries.pos, piece.keys.pos
        z = self.spans(piece.queries.sides)
        of_heads(f"spans of {z.shape[1]} heads", z.shape[1], piece)
        z = z.expand(q.shape[:3])

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            m = ((self.ramp + z[b, h, i] - (distance - self.nearest)) / self.ramp).clamp(0, 1)
            inside = m > 0 if self.itself else (m > 0) & (distance > 0)
            # a plain log would have a NaN gradient where the ramp ends
            return s + torch.where(inside, torch.log(torch.where(inside, m, 1.0)), -torch.inf).to(s.dtype)

        return score


class AdaptiveSpan(Ramp):
    """A learned span z_h in [0, longest] for each head: long rows at the price of the few heads that look far.

    Use it under `Causal() & Band(longest)`, with `penalties={"span": 2e-6}` in the model (the authors' scripts have
    5e-7 to 2e-6): aux "span" is the mean of z over heads, in positions. z is clamped after each step. The paper and its
    code read positions before the query only: `itself=False`, or the pattern `Band(longest, -1)`, which says the same.
    The paper's x is i - j; the published code's is i - j - 1, `nearest=1`, and it adds 1e-8 to the normaliser, which is
    left out here.

    heads: those of the layer.
    longest, ramp, nearest, itself: see `Ramp`.
    start: where every z begins, in positions.

    Errors: ValueError where the layer has another number of heads. Source: Sukhbaatar et al., 2019, arXiv:1905.07799,
    section 2.2.
    """

    def __init__(
        self,
        heads: int,
        longest: int,
        *,
        ramp: float = 32.0,
        nearest: Nearest = 0,
        itself: bool = True,
        start: float = 0.0,
    ):
        super().__init__(longest, ramp=ramp, nearest=nearest, itself=itself)
        self.span = nn.Parameter(torch.full((at_least("heads", heads, 1),), float(within("start", start, 0, longest))))

    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return precise(self.span)[None, :, None]

    def aux(self, sides: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        return {"span": precise(self.span).mean()}

    def penalties(self) -> Mapping[str, Penalty]:
        return {"span": Penalty((self.span,))}

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        self.span.clamp_(0, self.longest)


class DynamicSpan(Ramp):
    """A span for each head and token, z_t = longest * sigmoid(v_h.x_t + b_h): the same window, decided as it reads.

    Attention projects v_h.x_t + b_h from its input: the penalty "span", the mean of z over heads for each token, trains
    that matrix and what lies beneath it. `longest`, `ramp`, `nearest`, `itself`: see `Ramp`.
    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2.
    """

    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return self.longest * torch.sigmoid(precise(sides["span"])[..., 0])

    def sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return {"span": Side(1)}

    def aux(self, sides: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        return {"span": self.spans(sides).mean(1)}

    def penalties(self) -> Mapping[str, Penalty]:
        return {"span": Penalty((), reaches_x=True)}


EXAMPLES = (
    lambda: AdaptiveSpan(2, 8, ramp=3, start=2.0),
    lambda: AdaptiveSpan(2, 8, ramp=2, nearest=1, itself=False, start=4.0),
    lambda: DynamicSpan(8, ramp=3),
    lambda: DynamicSpan(8, ramp=2, nearest=1, itself=False),
)
