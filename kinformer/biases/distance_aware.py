"""DistanceAware: scores multiplied by a learned sigmoid of the distance."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.layer import Context


class DistanceAware(Bias):
    """ReLU(score) f(alpha_h |i - j|), the multiplicative bias of the DA-Transformer: each head learns near or far.

    f(R) = (1 + e^beta_h) / (1 + e^(beta_h - R)) is 1 at distance 0; with distance it falls to 0 where alpha < 0 and
    rises to 1 + e^beta where alpha > 0. The ReLU comes first, so that f can only weaken or strengthen. Two numbers per
    head are learned; they start at 0, where distance counts for nothing (this library's choice). ValueError where the
    layer has another number of heads.

    Source: Wu et al., 2020, arXiv:2010.06925, section 3.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(heads))
        self.beta = nn.Parameter(torch.zeros(heads))

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
        heads = len(self.alpha)
        if q.shape[1] != heads:
            raise ValueError(f"DistanceAware({heads}) came to a layer of {q.shape[1]} heads; give both the same number")
        dtype = torch.promote_types(q.dtype, torch.float32)
        alpha, beta = self.alpha.to(dtype), self.beta.to(dtype)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            r = alpha[h] * (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            f = torch.exp(F.softplus(beta[h]) - F.softplus(beta[h] - r))  # the quotient, without its overflow
            return F.relu(s) * f.to(s.dtype)

        return score


EXAMPLES = (lambda: DistanceAware(2),)
COMPILES = True
