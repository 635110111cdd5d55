"""RandomFeatures: features of random directions, and how directions are drawn and drawn anew."""

import random
from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_flag, check_option, check_unused, check_whole_number
from kinformer.core.feature_map import FeatureMap

Lengths = Literal["normal", "equal"]


class RandomFeatures(FeatureMap):
    """Features of random directions, which are drawn from a seed and saved. A subclass writes `draw`.

    redraw: `after_step` draws anew every so many steps of training, by seed and step, so that a training that goes on
        draws what it would have drawn; None for never.
    seed: the first draw comes from it.
    """

    directions: Float[Tensor, "*heads m K"]
    steps: Int[Tensor, ""]

    def __init__(self, redraw: int | None, seed: int):
        super().__init__()
        if redraw is not None and redraw < 1:
            raise ValueError(f"redraw={redraw}: draw anew every so many steps, at least 1, or None for never")
        self.redraw, self.seed = redraw, check_whole_number("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @abstractmethod
    def draw(self, seed: int) -> Float[Tensor, "*heads m K"]:
        """Directions from a seed."""

    def begin(self) -> None:
        """The first draw, once a subclass knows its sizes."""
        self.register_buffer("directions", self.draw(self.seed))

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training, and draw new directions where it is time."""
        if (seed := next_draw_seed(self.steps, self.redraw, self.seed)) is not None:
            self.directions.copy_(self.draw(seed))


class Directions(RandomFeatures):
    """Features of random directions w_1 .. w_m, the same for all heads.

    k_dim: the width of a head.
    directions: how many, m; more of them, a better estimate.
    orthogonal: each K of them at right angles, which lowers the error; False draws every direction by itself.
    lengths: of orthogonal directions: "normal", as long as normal vectors are, keeps the estimate right on average;
        "equal" makes every one sqrt(K) long, the paper's regularised kernel. The authors' code offers both.
    redraw, seed: as in `RandomFeatures`.

    Errors: ValueError for heads of another width, and for lengths of directions that are not orthogonal.
    """

    directions: Float[Tensor, "m K"]

    def __init__(self, k_dim: int, directions: int, orthogonal: bool, lengths: Lengths, redraw: int | None, seed: int):
        super().__init__(redraw, seed)
        check_at_least("k_dim", k_dim, 1)
        self.shape = (check_at_least("directions", directions, 1), k_dim)
        self.orthogonal, self.lengths = check_flag("orthogonal", orthogonal), check_option("lengths", lengths, Lengths)
        if not orthogonal:
            check_unused("orthogonal=False", lengths=(lengths, "normal"))
        self.begin()

    def draw(self, seed: int) -> Float[Tensor, "m K"]:
        return draw_directions(*self.shape, self.orthogonal, seed, self.lengths)

    def features(self, k_dim: int) -> int:
        return self.directions.shape[0]

    def project(self, x: Float[Tensor, "B H T K"]) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H T m"]]:
        """x / K^(1/4), so that products of two are q.k / sqrt(K), and its products with the directions."""
        k_dim = self.directions.shape[1]
        if x.shape[-1] != k_dim:
            raise ValueError(
                f"{type(self).__name__} was made for heads of width {k_dim} and got {x.shape[-1]}; "
                f"make it with k_dim={x.shape[-1]}"
            )
        x = x * k_dim**-0.25
        return x, x @ self.directions.to(x.dtype).mT


class HeadDirections(RandomFeatures):
    """Features of random directions of which each key head has its own, drawn normal.

    heads, k_dim: those of the keys.
    directions: how many a head, D.
    redraw, seed: as in `RandomFeatures`.

    Errors: ValueError for other heads than it was made for.
    """

    directions: Float[Tensor, "H D K"]

    def __init__(self, heads: int, k_dim: int, directions: int, redraw: int | None, seed: int):
        super().__init__(redraw, seed)
        (
            check_at_least("heads", heads, 1),
            check_at_least("k_dim", k_dim, 1),
            check_at_least("directions", directions, 1),
        )
        self.shape = (heads, directions, k_dim)
        self.begin()

    def draw(self, seed: int) -> Float[Tensor, "H D K"]:
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))

    def features(self, k_dim: int) -> int:
        return self.shape[1]

    def check(self, x: Float[Tensor, "B H T K"]) -> None:
        """ValueError for other heads than it was made for."""
        heads, _, k_dim = self.shape
        if (x.shape[1], x.shape[3]) != (heads, k_dim):
            raise ValueError(
                f"{type(self).__name__} was made for {heads} key heads of width {k_dim} and got "
                f"{x.shape[1]} of width {x.shape[3]}; make it with heads={x.shape[1]}, k_dim={x.shape[3]}"
            )


def next_draw_seed(steps: Int[Tensor, ""], every: int | None, seed: int) -> int | None:
    """Count a step of training in `steps`; the seed of another draw, where one is made every so many, else None."""
    steps += 1
    if not every or (step := int(steps)) % every:
        return None
    # torch's generator looks at 32 bits of a seed, so seed and step are mixed into as many
    return random.Random(f"{seed} {step}").getrandbits(32)


def draw_directions(directions: int, k_dim: int, orthogonal: bool, seed: int, lengths: Lengths) -> Float[Tensor, "m K"]:
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
