"""AdaptiveSpan: each head learns how far it looks; DynamicSpan: each head decides it for each token."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.layer import Context


class Ramp(Bias):
    """A soft window: weights times m(x) = clamp((ramp + z - x) / ramp, 0, 1), renormalised; subclasses give the span z.

    `longest` is the largest span in positions, `ramp` the width of the soft edge. x is |i - j|, or |i - j| - 1 where
    `nearest` is 1. `itself=False` keeps a query from reading its own position.
    """

    def __init__(self, longest: int, *, ramp: float = 32.0, nearest: Literal[0, 1] = 0, itself: bool = True):
        super().__init__()
        self.longest, self.ramp, self.nearest, self.itself = longest, ramp, nearest, itself

    @abstractmethod
    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        """z, in positions, for each query."""

    def bind(
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
        dtype = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257
        z = self.spans(sides).to(dtype)
        if z.shape[1] != q.shape[1]:
            raise ValueError(f"spans of {z.shape[1]} heads came to a layer of {q.shape[1]}; give both the same number")
        z = z.expand(q.shape[0], q.shape[1], q.shape[2])

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            m = ((self.ramp + z[b, h, i] - (distance - self.nearest)) / self.ramp).clamp(0, 1)
            inside = m > 0 if self.itself else (m > 0) & (distance > 0)
            # a plain log would have a NaN gradient where the ramp ends
            return s + torch.where(inside, torch.log(torch.where(inside, m, 1.0)), -torch.inf).to(s.dtype)

        return score


class AdaptiveSpan(Ramp):
    """A learned span z_h in [0, longest] for each head: long rows at the price of the few heads that look far.

    Use it under `Causal() & Band(longest)`, with `penalties={"span": weight}` in the model: aux "span" is the mean of
    z over heads. z starts at `start` and is clamped after each step. The paper and its code read positions before the
    query only: `itself=False`, or the pattern `Band(longest, -1)`, which says the same. The paper's x is i - j; the
    published code's is i - j - 1, `nearest=1`, and it adds 1e-8 to the normaliser, which is left out here. ValueError
    where the layer has another number of heads.

    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2.
    """

    def __init__(
        self,
        heads: int,
        longest: int,
        *,
        ramp: float = 32.0,
        nearest: Literal[0, 1] = 0,
        itself: bool = True,
        start: float = 0.0,
    ):
        super().__init__(longest, ramp=ramp, nearest=nearest, itself=itself)
        self.span = nn.Parameter(torch.full((heads,), float(start)))

    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return self.span[None, :, None]

    def aux(self, sides: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"span": self.span.mean()}

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        self.span.clamp_(0, self.longest)


class DynamicSpan(Ramp):
    """A span for each head and token, z_t = longest * sigmoid(v_h.x_t + b_h): the same window, decided as it reads.

    Attention projects v_h.x_t + b_h from its input. aux "span" is the mean of z over heads, for each token.
    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2.
    """

    def spans(self, sides: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return self.longest * torch.sigmoid(sides["span"][..., 0])

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        return {"span": 1}

    def aux(self, sides: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"span": self.spans(sides).mean(1)}


EXAMPLES = (
    lambda: AdaptiveSpan(2, 8, ramp=3, start=2.0),
    lambda: AdaptiveSpan(2, 8, ramp=2, nearest=1, itself=False, start=4.0),
    lambda: DynamicSpan(8, ramp=3),
    lambda: DynamicSpan(8, ramp=2, nearest=1, itself=False),
)
COMPILES = True
