"""RandomFourier: sines and cosines of random directions, random feature attention."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_flag, check_in_range, check_option
from kinformer.nn.maps.random_features import HeadDirections


class RandomFourier(HeadDirections):
    """Random feature attention's map: sines and cosines that estimate a Gaussian kernel of unit vectors.

    phi(x) = [sin(W x^), cos(W x^)] / sqrt(D), x^ = x / |x|, W = sigma W~ with W~ drawn, normal

    Choose it for attention near softmax's at a linear price: E[phi(x).phi(y)] = exp(-|sigma (x^ - y^)|^2 / 2), which
    on unit vectors is softmax's exp(sigma^2 x^.y^) up to a constant that cancels. q.k is not divided by sqrt(K):
    `sigma`, learned per head and dimension, is the temperature. Products may be negative, so a read divides by its sum
    raised to at least `floor`, and has no lse. With few directions an early sum may come near 0, where rounding shows:
    16 to 32 of them are off by up to a fifth in bfloat16, 64 by a hundredth.

    heads, k_dim: those of the keys.
    directions: how many, D.
    scale: in place of 1 / sqrt(D).
    eps: added to |x|.
    tau: divides W.
    unit: divide x by its length, as the paper does; False leaves x alone, and products estimate the Gaussian kernel of
        x itself, as the random Fourier features of other libraries do (with sigma = K^(-1/4)).
    floor: the least that a read divides by, above 0.
    clamp: raise the sum ("value") or its absolute value ("magnitude") to the floor.
    redraw: draw anew every so many steps of training, None for never. The paper's training takes other directions at
        every step (1; from a pool of 200 that are drawn before), so that heads rely on none; the last ones stay.
    seed: the first draw comes from it; draws are saved.

    The authors' code has scale 0.1, eps 1e-3 and a floor of 1, with which short sequences are shrunk, because 0.01
    times few products stays below 1. Errors: ValueError for other heads than it was made for. Source: Peng et al.,
    2021, arXiv:2103.02143, section 3.1.
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
                raise ValueError(f"{name}={value} would divide by nothing, or leave nothing; make it positive")
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
