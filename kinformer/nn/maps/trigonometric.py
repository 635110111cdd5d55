"""Trigonometric: sines and cosines that estimate exp(q.k / sqrt(K)), as a baseline for FAVOR+."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.example import Example
from kinformer.nn.maps.random_features import Directions, Lengths


class Trigonometric(Directions):
    """Sine and cosine feature map that estimates exp(q.k / sqrt(K)), to compare with FAVOR+.

    phi(x) = exp(|x|^2 / 2) [sin(w.x), cos(w.x)] / sqrt(m) for m directions w, with x = q / K^(1/4) or x = k / K^(1/4)

    For models choose `FAVOR`, whose features are positive. The estimate of this map is unbiased, but its products may
    be negative. If exp(q.k / sqrt(K)) is small, as for most pairs, the error is not small in proportion. It is then of
    the size of exp((|q|^2 + |k|^2) / (2 sqrt(K))). If the angle between query and key is below about 90 degrees, this
    map has the smaller error of the two. `RandomFourier` normalises queries and keys, and so has no factor exp(|x|^2 /
    2).

    floor: smallest divisor of an attention output, above 0. It applies to the sum of products divided by the prefactor
        exp(|x|^2 / 2) of the query and by the largest prefactor of its keys. A smaller or negative sum is raised to the
        floor. The result then depends on that largest prefactor, and its gradient treats this prefactor as a constant,
        as code that subtracts a detached maximum does. The key learns as if the floor grew with this prefactor, and all
        other gradients are exact. The prefactor of a query cancels in the output and has no gradient. The estimate of
        the kernel therefore has no gradient by |q|.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`.

    Errors: ValueError if the heads have another width than `k_dim`. Source: Choromanski et al., 2020, arXiv:2009.14794,
    section 2.3, its trigonometric estimate; Rahimi and Recht, 2007,
    https://papers.nips.cc/paper/3182-random-features-for-large-scale-kernel-machines.
    """

    signed, by_vector = True, True

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        floor: float = 1e-3,
        orthogonal: bool = True,
        lengths: Lengths = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(k_dim, directions, orthogonal, lengths, redraw, seed)
        self.floor = check_in_range("floor", floor, 1e-30, math.inf)

    def features(self, k_dim: int) -> int:
        return 2 * super().features(k_dim)

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        x, angle = self.project(x)
        half = x.square().sum(-1) / 2
        constant = half.detach()  # the constant has no gradient: a factor of 1 carries its gradient instead
        phi = torch.cat([angle.sin(), angle.cos()], -1) * angle.shape[-1] ** -0.5
        # a query's prefactor cancels, and it does not affect a read if a sum is raised to the floor
        return (phi if is_query else (half - constant).exp()[..., None] * phi), constant

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return total.clamp_min(self.floor)


_RAISED = {"derivative": "if a sum is raised to the floor, the largest prefactor of its keys is treated as a constant"}
EXAMPLES = (
    lambda: Trigonometric(8, 16),
    lambda: Trigonometric(8, 48, orthogonal=False, redraw=1),
    Example(lambda: Trigonometric(8, 16, floor=10.0), breaks=_RAISED),
)
