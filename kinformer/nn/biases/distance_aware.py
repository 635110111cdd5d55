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
    """Scores multiplied by a learned function of the distance, as in the DA-Transformer.

    out_ij = ReLU(s_ij) f(alpha_h |i - j|), f(R) = (1 + e^beta_h) / (1 + e^(beta_h - R))

    Here s_ij is the score of query i and key j before this bias. Choose it if each head should learn whether near or
    far keys count more. f is 1 at distance 0. With growing distance it falls to 0 if alpha < 0, and rises to 1 + e^beta
    if alpha > 0.

    ReLU is applied first, so that f can only weaken or strengthen a score. A score of -inf stays -inf, so a pair that
    another bias or the block below excluded stays excluded.

    heads: number of heads of the layer; each head learns two numbers, alpha and beta.

    Errors: ValueError if the layer has a different number of heads. Source: Wu et al., 2020, arXiv:2010.06925, section
    3.

    Differences: alpha and beta start at 0 in this library, so that the distance has no effect at first.
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
            f = torch.exp(F.softplus(beta[h]) - F.softplus(beta[h] - r))  # f(r) without overflow
            return torch.where(s == -torch.inf, s, F.relu(s) * f)

        return score

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """Return alpha of each head; a head weakens far keys if alpha < 0 and strengthens them if alpha > 0."""
        return {"alpha": HeadValues(at_least_float32(self.alpha)[None, :, None], "per position")}


EXAMPLES = (lambda: DistanceAware(2),)
