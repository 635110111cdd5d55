"""GeneralisedKernel: random features of a kernel of their own, which estimates no softmax."""

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
LEAST = 2.0**40  # times the smallest normal number: sums of this size still differ from 0


class GeneralisedKernel(Directions):
    """phi(x) = f(w.x) + eps over m directions w, x being q or k over K^(1/4): the Performer's generalised attention.

    Choose it where a model is trained from the start: the paper's best is `relu`, ahead of softmax's estimate on
    proteins. The kernel is its own, so reads merge with each other alone.

    f: a function without negative values, which a divisor needs; of the paper's the signed ones (cos, gelu, tanh, the
        identity) are left out. "exp" stores the scale of each vector's largest feature separately, so that all features
        stay finite.
    eps: keeps every vector some feature; above 0. 1e-3 is the number of the authors' code,
        for features that are scaled otherwise there: w.x / sqrt(m) for m directions, and here w.x / K^(1/4), as in
        performer-pytorch. Beside the features it is K^(1/4) / sqrt(m) times as large here, .18 at m=256, K=64.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`.

    Source: Choromanski et al., 2020, arXiv:2009.14794, section 4 and appendix D ("Performer-ReLU").
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
            raise ValueError(f"eps={eps} lets a vector have no feature at all; make it positive and finite")
        self.f, self.eps = check_option("f", f, Function), eps

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        u = self.project(x)[1]
        if self.f != "exp":
            return FUNCTIONS[self.f](u) + self.eps, u.new_zeros(u.shape[:-1])
        left = u.amax(-1, keepdim=True).clamp_min(math.log(self.eps))  # neither exp(u) nor eps overflows over exp(left)
        # float32 cannot add eps to features beyond exp(50); without eps a query might match no key
        eps = (math.log(self.eps) - left).exp().clamp_min(LEAST * torch.finfo(u.dtype).tiny)
        return (u - left).exp() + eps, left[..., 0]


EXAMPLES = (lambda: GeneralisedKernel(8, 12, orthogonal=False), lambda: GeneralisedKernel(8, 8, f="exp"))
