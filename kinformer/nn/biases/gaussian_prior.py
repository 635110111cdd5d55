"""GaussianPrior: a learned penalty that grows with the square of the distance."""

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
    """Learned Gaussian window around the query, which also lowers the score of the query with itself.

    bias_ij = -|w (i - j)^2 + b|, with w > 0 and b < 0

    Choose it for short texts if the important tokens are near. `ALiBi` has a fixed, linear penalty instead. Choose
    `QueryLocalness` if the important tokens may be far from the query.

    A Gaussian with a deviation of sigma positions has w = 1 / (2 sigma^2). The score of each token with itself falls by
    |b|, so that its neighbours can count more. Softplus of a learned number gives w, and softplus of another gives |b|.
    So w stays above 0 and b below 0.

    heads: 1 if all heads share w and b, as in the paper; the number of heads of the layer gives each head its own w and
        b.
    sigma: initial deviation, in positions.
    own: initial |b|.

    Errors: ValueError if `heads` is neither 1 nor the number of heads of the layer. Source: Guo et al., 2019,
    doi:10.1609/aaai.v33i01.33016489, Gaussian Transformer: a lightweight approach for natural language inference, AAAI.
    """

    def __init__(self, heads: int = 1, *, sigma: float = 5.0, own: float = 0.02):
        super().__init__()
        self.heads = check_at_least("heads", heads, 1)
        w = 0.5 / check_in_range("sigma", sigma, 0.01, 1000) ** 2
        self.raw_w = nn.Parameter(torch.full((heads,), _inverse(w)))
        self.raw_b = nn.Parameter(torch.full((heads,), _inverse(check_in_range("own", own, 1e-6, 1000))))

    @property
    def w(self) -> Float[Tensor, " heads"]:
        """Weight of the squared distance in each head, above 0, in float32 or a wider dtype."""
        return F.softplus(at_least_float32(self.raw_w))

    @property
    def b(self) -> Float[Tensor, " heads"]:
        """Offset in each head, below 0, in float32 or a wider dtype."""
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
        """Return the deviation sigma of each head, from w = 1 / (2 sigma^2)."""
        return {"sigma": HeadValues((2 * self.w).rsqrt()[None, :, None], "positions")}

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


def _inverse(x: float) -> float:
    """Return the inverse of softplus at x."""
    return x + math.log(-math.expm1(-x))


EXAMPLES = (lambda: GaussianPrior(), lambda: GaussianPrior(2, sigma=2.0, own=1.0))
