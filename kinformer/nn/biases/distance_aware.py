"""DistanceAware: scores multiplied by a learned sigmoid of the distance."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Bias, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least
from kinformer.core.heads import HeadValues
from kinformer.core.request import Request


class DistanceAware(Bias):
    """ReLU(score) f(alpha_h |i - j|), the multiplicative bias of the DA-Transformer: each head learns near or far.

    f(R) = (1 + e^beta_h) / (1 + e^(beta_h - R)) is 1 at distance 0; with distance it falls to 0 where alpha < 0 and
    rises to 1 + e^beta where alpha > 0. The ReLU comes first, so that f can only weaken or strengthen. Alpha and beta
    start at 0, where distance counts for nothing (this library's choice). A score of -inf stays: what a bias, or the
    block beneath, shut out is not opened by the ReLU.

    heads: those of the layer; two numbers of each are learned.

    Errors: ValueError where the layer has another number of heads. Source: Wu et al., 2020, arXiv:2010.06925,
    section 3.
    """

    magnifies = True

    def __init__(self, heads: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(check_at_least("heads", heads, 1)))
        self.beta = nn.Parameter(torch.zeros(heads))

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"DistanceAware({len(self.alpha)})", len(self.alpha), piece)
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        dtype = torch.promote_types(piece.queries.q.dtype, torch.float32)
        alpha, beta = self.alpha.to(dtype), self.beta.to(dtype)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            r = alpha[h] * (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            f = torch.exp(F.softplus(beta[h]) - F.softplus(beta[h] - r))  # the quotient, without its overflow
            return torch.where(s == -torch.inf, s, F.relu(s) * f)

        return score

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """Below 0 a head weakens far keys, above 0 it strengthens them."""
        return {"alpha": HeadValues(at_least_float32(self.alpha)[None, :, None], "per position")}


EXAMPLES = (lambda: DistanceAware(2),)
