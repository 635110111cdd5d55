"""GeneralisedKernel: a feature map with random directions and a kernel other than exp(q.k)."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_option
from kinformer.nn.maps.random_features import Directions, Lengths

Function = Literal["relu", "sigmoid", "abs", "softplus", "exp"]

FUNCTIONS: dict[Function, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "softplus": F.softplus,
    "exp": torch.exp,
}
LEAST = 2.0**40  # times the smallest normal number: sums of this size are still above 0


class GeneralisedKernel(Directions):
    """Feature map of the Performer's generalised attention: a function f of random projections.

    phi(x) = f(w.x) + eps for m directions w, with x = q / K^(1/4) or x = k / K^(1/4)

    Choose it if a model is trained from scratch: with `relu`, the paper's most accurate function, it is more accurate
    on proteins than the estimate of softmax. Attention over one set of keys can be merged with attention over another
    only if both use this map.

    f: function without negative values, because sums are divisors. The signed functions of the paper (cos, gelu, tanh,
        the identity) are left out. With "exp" features are divided by the largest of each vector, and this scale is
        kept separately, so that all features stay finite.
    eps: number above 0 added to each feature, so that no vector has only features of 0; 1e-3 in the authors' code.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`.

    Errors: ValueError if `eps` is not positive and finite, or if the heads have another width than `k_dim`.

    Source: Choromanski et al., 2020, arXiv:2009.14794, section 4 and appendix D ("Performer-ReLU").

    Differences: the authors' code uses w.x / sqrt(m) for m directions. This class uses w.x / K^(1/4), as
    performer-pytorch does. The same eps is therefore smaller relative to the features here, by the factor K^(1/4) /
    sqrt(m): 0.18 for m=256 and K=64.
    """

    by_vector = True

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        f: Function = "relu",
        eps: float = 1e-3,
        orthogonal: bool = True,
        lengths: Lengths = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(k_dim, directions, orthogonal, lengths, redraw, seed)
        if not 0 < eps < math.inf:
            raise ValueError(f"eps={eps} must be positive and finite, so that every vector has a feature above 0")
        self.f, self.eps = check_option("f", f, Function), eps

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        u = self.project(x)[1]
        if self.f != "exp":
            return FUNCTIONS[self.f](u) + self.eps, u.new_zeros(u.shape[:-1])
        # exp(u) and eps are divided by exp(left), so that neither overflows
        left = u.amax(-1, keepdim=True).clamp_min(math.log(self.eps))
        # float32 cannot add eps to features beyond exp(50); without eps a query might match no key
        eps = (math.log(self.eps) - left).exp().clamp_min(LEAST * torch.finfo(u.dtype).tiny)
        return (u - left).exp() + eps, left[..., 0]


EXAMPLES = (lambda: GeneralisedKernel(8, 12, orthogonal=False), lambda: GeneralisedKernel(8, 8, f="exp"))
