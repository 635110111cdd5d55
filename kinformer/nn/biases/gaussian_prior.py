"""GaussianPrior: attention falls off with the square of the distance, as fast as is learned."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.heads import HeadValues
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances


class GaussianPrior(Bias):
    """score - |w (i - j)^2 + b|, w > 0, b < 0, both learned: a Gaussian around the query, less of the query itself.

    w = 1 / (2 sigma^2) for a deviation of sigma positions; |b| is what a token loses of its own score, so that
    its neighbours may count more. Choose it for short texts, where what matters stands near, over `ALiBi`, whose slopes
    are given and straight; and `Localness` where what matters may stand elsewhere. Both numbers are softplus of what is
    learned, so they keep their signs and come as near to 0 as they like.

    heads: 1 for the paper's w and b, which all heads share; those of the layer for a pair for each.
    sigma: the deviation at the start, in positions.
    own: |b| at the start.

    Errors: ValueError where it is made for other heads than the layer has, unless for 1. Source: Guo et al., 2019,
    Gaussian Transformer: a lightweight approach for natural language inference, AAAI.
    """

    def __init__(self, heads: int = 1, *, sigma: float = 5.0, own: float = 0.02):
        super().__init__()
        self.heads = check_at_least("heads", heads, 1)
        w = 0.5 / check_in_range("sigma", sigma, 0.01, 1000) ** 2
        self.raw_w = nn.Parameter(torch.full((heads,), _inverse(w)))
        self.raw_b = nn.Parameter(torch.full((heads,), _inverse(check_in_range("own", own, 1e-6, 1000))))

    @property
    def w(self) -> Float[Tensor, " heads"]:
        """In float32 or better."""
        return F.softplus(at_least_float32(self.raw_w))

    @property
    def b(self) -> Float[Tensor, " heads"]:
        """Likewise."""
        return -F.softplus(at_least_float32(self.raw_b))

    def bind(self, piece: Request) -> ScoreFn:
        if self.heads > 1:
            check_bias_heads(f"GaussianPrior({self.heads})", self.heads, piece)
        heads, q_pos, k_pos = piece.queries.q.shape[1], piece.queries.pos, piece.keys.pos
        w, b = self.w.expand(heads), self.b.expand(heads)

        def score(s: Tensor, row: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, row, h, i) - at(k_pos, row, h, j)).to(w.dtype)
            return s - (w[h] * distance * distance + b[h]).abs().to(s.dtype)

        return score

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """The deviation of each head's prior, from w = 1 / (2 sigma^2)."""
        return {"sigma": HeadValues((2 * self.w).rsqrt()[None, :, None], "positions")}

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


def _inverse(x: float) -> float:
    """What softplus makes x of."""
    return x + math.log(-math.expm1(-x))


EXAMPLES = (lambda: GaussianPrior(), lambda: GaussianPrior(2, sigma=2.0, own=1.0))
