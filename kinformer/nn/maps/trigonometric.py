"""Trigonometric: sines and cosines that estimate softmax's kernel itself, which positive features are compared with."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.example import Example
from kinformer.nn.maps.random_features import Directions, Lengths


class Trigonometric(Directions):
    """Sines and cosines with both prefactors, right on average for exp(q.k / sqrt(K)): what FAVOR+ is compared with.

    phi(x) = exp(|x|^2 / 2) [sin(w.x), cos(w.x)] / sqrt(m) over m directions w, x being q or k over K^(1/4)

    Choose `FAVOR` for attention: products here may be negative, and where the kernel is small, as most of attention is,
    their error is of the size of exp((|q|^2 + |k|^2) / 2 sqrt(K)) and not of the kernel. Up to about a right angle of
    query and key it is the better of the two. `RandomFourier` normalises queries and keys, and so has no prefactors.

    floor: the least that a read divides by, above 0, where sums are taken over the query's prefactor and the largest of
        its keys; a sum below it, negative ones too, is raised to it. What is read then depends on that largest
        prefactor, and gradients hold it fast, as code that subtracts a detached maximum does: its key learns as if
        the floor grew with it. All else learns what was read. A query's prefactor cancels in every read and learns
        nothing: of phi(q) and its constant by themselves, the kernel has no gradient by |q|.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`.

    Errors: ValueError for heads of another width. Source: Choromanski et al., 2020, arXiv:2009.14794, section 2.3, its
    trigonometric estimate; Rahimi and Recht, 2007.
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
        constant = half.detach()  # nothing learns through a constant: what would is learned through a factor of 1
        phi = torch.cat([angle.sin(), angle.cos()], -1) * angle.shape[-1] ** -0.5
        # a query's prefactor cancels, and where a sum is raised it has no part in what is read
        return (phi if is_query else (half - constant).exp()[..., None] * phi), constant

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return total.clamp_min(self.floor)


_RAISED = {"derivative": "where a sum is raised to the floor, the largest prefactor of its keys is held fast"}
EXAMPLES = (
    lambda: Trigonometric(8, 16),
    lambda: Trigonometric(8, 48, orthogonal=False, redraw=1),
    Example(lambda: Trigonometric(8, 16, floor=10.0), breaks=_RAISED),
)
