"""RandomFourier: sines and cosines of random projections, the map of random feature attention."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_flag, check_in_range, check_option
from kinformer.nn.maps.random_features import HeadDirections


class RandomFourier(HeadDirections):
    """Feature map of linear attention: sines and cosines that estimate a Gaussian kernel of unit vectors.

    phi(x) = [sin(W x^), cos(W x^)] / sqrt(D), with x^ = x / |x|, W = sigma W~ and normal random W~

    Choose it for an estimate of softmax attention at linear cost. The expected product of phi(x) and phi(y) is
    exp(-|sigma (x^ - y^)|^2 / 2). On unit vectors this equals exp(sigma^2 x^.y^) of softmax, up to a constant that
    cancels. The product q.k is not divided by sqrt(K): `sigma`, learned per head and dimension, is the temperature.

    Products of features may be negative. Attention therefore divides by their sum, raised to at least `floor`, and
    returns no log-sum-exp. With few directions a sum over few keys may be near 0, and rounding errors become visible.
    In bfloat16 the error is up to 1/5 for 16 to 32 directions, and 1/100 for 64.

    heads, k_dim: number and width of the key heads.
    directions: number of directions for each head, D.
    scale: factor of the features; 1 / sqrt(D) by default.
    eps: added to |x| before the division by it.
    tau: divisor of the matrix W.
    unit: if True, divide x by its norm, as the paper does. If False, products estimate the Gaussian kernel of x itself,
        as the random Fourier features of other libraries do (with sigma = K^(-1/4)).
    floor: smallest divisor of an attention output, above 0.
    clamp: "value" raises a sum below the floor to the floor; "magnitude" first takes its absolute value.
    redraw: number of training steps after which new directions are made, None for never. The paper's training uses
        other directions at every step (1), from a pool of 200 made before, so that heads do not rely on any of them.
        After training the last directions stay.
    seed: seed of the first directions; checkpoints contain the directions.

    Errors: ValueError if the number or the width of the heads differs, or if `floor`, `tau` or `scale` is not positive
    and finite. Source: Peng et al., 2021, arXiv:2103.02143, section 3.1.

    Differences: the authors' code has scale 0.1, eps 1e-3 and a floor of 1. These numbers shrink the outputs of short
    sequences: each product has the factor 0.1 * 0.1, so a sum of few products stays below the floor of 1.
    """

    signed, levels, by_vector = True, False, True

    def __init__(
        self,
        heads: int,
        k_dim: int,
        directions: int = 64,
        *,
        scale: float | None = None,
        eps: float = 1e-6,
        tau: float = 1.0,
        floor: float = 1e-3,
        clamp: Literal["value", "magnitude"] = "value",
        unit: bool = True,
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(heads, k_dim, directions, redraw, seed)
        for name, value in {"floor": floor, "tau": tau, "scale": 1.0 if scale is None else scale}.items():
            if not 0 < value < math.inf:
                raise ValueError(
                    f"{name}={value} must be positive and finite, because the map multiplies or divides by it"
                )
        self.scale = directions**-0.5 if scale is None else scale
        self.eps, self.tau, self.floor = check_in_range("eps", eps, 0.0, math.inf, open_end=True), tau, floor
        self.clamp = check_option("clamp", clamp, ("value", "magnitude"))
        self.sigma = nn.Parameter(torch.ones(heads, k_dim))
        self.unit = check_flag("unit", unit)

    def features(self, k_dim: int) -> int:
        return 2 * super().features(k_dim)

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        self.check(x)
        x = x / (x.norm(dim=-1, keepdim=True) + self.eps) if self.unit else x
        w = self.sigma[:, None].to(x.dtype) * self.directions.to(x.dtype) / self.tau
        angle = torch.einsum("bhtk,hdk->bhtd", x, w)  # [B H T D]
        return self.scale * torch.cat([angle.sin(), angle.cos()], -1), x.new_zeros(x.shape[:-1])

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (total if self.clamp == "value" else total.abs()).clamp_min(self.floor)


EXAMPLES = (
    lambda: RandomFourier(2, 8, 64),
    lambda: RandomFourier(2, 8, 16, scale=0.1, eps=1e-3, tau=2.0, floor=1.0, clamp="magnitude", seed=1),
    lambda: RandomFourier(2, 8, 64, unit=False, redraw=1),
)
