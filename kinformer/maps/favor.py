"""FAVOR: positive random features of softmax's kernel; RandomReLU: random features of a kernel of their own."""

import random
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import at_least, one_of
from kinformer.core.feature_map import FeatureMap


class Redrawn(FeatureMap):
    """Features of random directions w_1 .. w_m, the same for all heads.

    k_dim: the width of a head.
    directions: how many, m; more of them, a better estimate.
    orthogonal: each K of them at right angles, which lowers the error; False draws every direction by itself.
    lengths: of orthogonal directions: "normal", as long as normal vectors are, keeps the estimate right on average;
        "equal" makes every one sqrt(K) long, the paper's regularised kernel.
    redraw: `after_step` draws anew every so many steps of training, by seed and step, so that a training that goes on
        draws what it would have drawn; None for never.
    seed: the draw comes from it, and is saved.

    Errors: ValueError for heads of another width.
    """

    directions: Float[Tensor, "m K"]
    steps: Int[Tensor, ""]

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        orthogonal: bool = True,
        lengths: Literal["normal", "equal"] = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        at_least("k_dim", k_dim, 1)
        if directions < 1:
            raise ValueError(f"directions={directions}: random features need at least one")
        if redraw is not None and redraw < 1:
            raise ValueError(f"redraw={redraw}: draw anew every so many steps, at least 1, or None for never")
        self.orthogonal, self.redraw, self.seed = orthogonal, redraw, seed
        self.lengths = one_of("lengths", lengths, ("normal", "equal"))
        self.register_buffer("directions", drawn(directions, k_dim, orthogonal, seed, self.lengths))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def features(self, k_dim: int) -> int:
        return self.directions.shape[0]

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training, and draw new directions where it is time."""
        self.steps += 1
        step = int(self.steps)
        if self.redraw and step % self.redraw == 0:
            directions, k_dim = self.directions.shape
            # torch's generator looks at 32 bits of a seed, so seed and step are mixed into as many
            seed = random.Random(f"{self.seed} {step}").getrandbits(32)
            self.directions.copy_(drawn(directions, k_dim, self.orthogonal, seed, self.lengths))

    def projected(self, x: Float[Tensor, "B H T K"]) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H T m"]]:
        """x / K^(1/4), so that products of two are q.k / sqrt(K), and its products with the directions."""
        k_dim = self.directions.shape[1]
        if x.shape[-1] != k_dim:
            raise ValueError(
                f"{type(self).__name__} was made for heads of width {k_dim} and got {x.shape[-1]}; "
                f"make it with k_dim={x.shape[-1]}"
            )
        x = x * k_dim**-0.25
        return x, x @ self.directions.to(x.dtype).mT


class FAVOR(Redrawn):
    """FAVOR+: positive random features of softmax's kernel, right on average for exp(q.k / sqrt(K)).

    phi(x) = exp(w.x - |x|^2 / 2) / sqrt(m) over m directions w, x being q or k over K^(1/4)

    Choose it for softmax attention at a linear price. Each vector is scaled by its own largest feature, and the scale
    is handed on beside it, so no key knows of a later one, none overflows, and the lse is that of softmax's estimate:
    reads merge with those of `Softmax`.

    eps: added to scaled features, which keeps sums off 0 and is worth nothing beside a feature near the largest; 0
        makes the estimate unbiased.
    hyperbolic: read each direction both ways, which halves m for as many features and lowers the error.
    stabiliser: "token" as above; "sequence" is that of published code (with `eps=1e-4`): keys are scaled by the largest
        of the whole call and |x|^2 / 2 stays in the feature, so through eps a query feels later keys, and padding.
        Float32 sums then lose keys with |k|^2 / sqrt(K) beyond about 250.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Redrawn`.

    Errors: ValueError for heads of another width. Source: Choromanski et al., 2020, arXiv:2009.14794, sections 2.2 to
    2.4.
    """

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        eps: float = 1e-6,
        hyperbolic: bool = False,
        stabiliser: Literal["token", "sequence"] = "token",
        orthogonal: bool = True,
        lengths: Literal["normal", "equal"] = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(k_dim, directions, orthogonal=orthogonal, lengths=lengths, redraw=redraw, seed=seed)
        if eps < 0:
            raise ValueError(f"eps={eps} would make features negative; give 0 or more")
        self.eps, self.hyperbolic = eps, hyperbolic
        self.stabiliser = one_of("stabiliser", stabiliser, ("token", "sequence"))

    def features(self, k_dim: int) -> int:
        return super().features(k_dim) * (2 if self.hyperbolic else 1)

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        x, u = self.projected(x)
        u = torch.cat([u, -u], -1) if self.hyperbolic else u
        half = x.square().sum(-1) / 2
        largest = u.amax(-1)
        if self.stabiliser == "token":
            phi, constant = (u - largest[..., None]).exp(), largest - half
        else:
            constant = largest if is_query or not u.shape[2] else largest.amax(-1, keepdim=True).expand_as(largest)
            phi = (u - (half + constant)[..., None]).exp()
        return (phi + self.eps) * u.shape[-1] ** -0.5, constant


class RandomReLU(Redrawn):
    """phi(x) = relu(w.x) + eps: generalised attention, whose kernel is its own and no estimate of softmax's.

    The paper's choice where a model is trained from the start. Reads merge with each other alone.

    eps: keeps every vector some feature; above 0.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Redrawn`.

    Source: Choromanski et al., 2020, arXiv:2009.14794, section 4 ("Performer-ReLU").
    """

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        eps: float = 1e-3,
        orthogonal: bool = True,
        lengths: Literal["normal", "equal"] = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(k_dim, directions, orthogonal=orthogonal, lengths=lengths, redraw=redraw, seed=seed)
        if eps <= 0:
            raise ValueError(f"eps={eps} lets a vector have no feature at all; make it positive")
        self.eps = eps

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        return self.projected(x)[1].relu() + self.eps, x.new_zeros(x.shape[:-1])


def drawn(
    directions: int, k_dim: int, orthogonal: bool, seed: int, lengths: Literal["normal", "equal"] = "normal"
) -> Float[Tensor, "m K"]:
    """Normal vectors; with `orthogonal` each K of them at right angles, as long as normal vectors or sqrt(K)."""
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(directions, k_dim, generator=draw)
    if not orthogonal:
        return normal
    blocks = -(-directions // k_dim)
    q, r = torch.linalg.qr(torch.randn(blocks, k_dim, k_dim, generator=draw))
    # a QR alone prefers a sign; with that of R's diagonal, every rotation is equally likely
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(0, 1)[:directions]
    return rows * (normal.norm(dim=1, keepdim=True) if lengths == "normal" else k_dim**0.5)


EXAMPLES = (
    lambda: FAVOR(8, 16),
    lambda: FAVOR(8, 12, eps=0.0, hyperbolic=True, redraw=2, seed=1),
    lambda: RandomReLU(8, 12, orthogonal=False),
)
