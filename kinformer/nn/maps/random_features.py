"""RandomFeatures: base classes of feature maps with random directions, and functions that make these."""

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
    """Base class of feature maps with random directions, which are made from a seed and saved.

    Linear attention projects queries and keys on these directions. Subclasses implement `draw`, and call `begin` once
    their sizes are known.

    redraw: number of training steps after which new directions are made, None for never. They depend on seed and step
        only, so that a resumed training has the same directions.
    seed: seed of the first directions.

    Errors: ValueError if `redraw` is below 1.
    """

    directions: Float[Tensor, "*heads m K"]
    steps: Int[Tensor, ""]

    def __init__(self, redraw: int | None, seed: int):
        super().__init__()
        if redraw is not None and redraw < 1:
            raise ValueError(f"redraw={redraw}: expected a number of training steps of at least 1, or None for never")
        self.redraw, self.seed = redraw, check_whole_number("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @abstractmethod
    def draw(self, seed: int) -> Float[Tensor, "*heads m K"]:
        """Return random directions made from a seed."""

    def begin(self) -> None:
        """Make the first directions; a subclass calls this once its sizes are known."""
        self.register_buffer("directions", self.draw(self.seed))

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a training step, and make new random directions if `redraw` steps have passed."""
        if (seed := next_draw_seed(self.steps, self.redraw, self.seed)) is not None:
            self.directions.copy_(self.draw(seed))


class Directions(RandomFeatures):
    """Base class of feature maps with random directions w_1 .. w_m that all heads share.

    k_dim: width of a head, K.
    directions: number of directions, m; more directions give an estimate with a lower error.
    orthogonal: if True, the directions in each group of K are orthogonal, which lowers the error. If False, all
        directions are independent.
    lengths: lengths of orthogonal directions. "normal" takes lengths of normally distributed vectors, which keeps the
        estimate unbiased. "equal" makes every length sqrt(K), the regularised kernel of the Performer paper. The
        authors' code offers both.
    redraw, seed: as in `RandomFeatures`.

    Errors: ValueError if the heads have another width than `k_dim`, or if `lengths` is given for directions that are
    not orthogonal.
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
        """Return x / K^(1/4), and the products of this scaled vector with the directions.

        For a query and a key scaled in this way, the product is q.k / sqrt(K).

        Errors: ValueError if x has another width than `k_dim`.
        """
        k_dim = self.directions.shape[1]
        if x.shape[-1] != k_dim:
            raise ValueError(
                f"{type(self).__name__} was made for heads of width {k_dim}, but got {x.shape[-1]}. Create it "
                f"with k_dim={x.shape[-1]}"
            )
        x = x * k_dim**-0.25
        return x, x @ self.directions.to(x.dtype).mT


class HeadDirections(RandomFeatures):
    """Base class of feature maps with normally distributed random directions for each key head.

    heads: number of key heads.
    k_dim: width of a key.
    directions: number of directions for each head, D.
    redraw, seed: as in `RandomFeatures`.

    Errors: ValueError if the number or the width of the heads differs.
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
        """Raise ValueError if x has another number of heads or another width than the directions."""
        heads, _, k_dim = self.shape
        if (x.shape[1], x.shape[3]) != (heads, k_dim):
            raise ValueError(
                f"{type(self).__name__} was made for {heads} key heads of width {k_dim}, but got {x.shape[1]} of "
                f"width {x.shape[3]}. Create it with heads={x.shape[1]}, k_dim={x.shape[3]}"
            )


def next_draw_seed(steps: Int[Tensor, ""], every: int | None, seed: int) -> int | None:
    """Count a training step; return the seed of new random numbers if they are due now, else None.

    steps: number of training steps so far, which is increased in place.
    every: number of steps after which new numbers are due, None for never.
    seed: seed of the first numbers.
    """
    steps += 1
    if not every or (step := int(steps)) % every:
        return None
    # torch's generator uses 32 bits of a seed, so seed and step are mixed into 32 bits
    return random.Random(f"{seed} {step}").getrandbits(32)


def draw_directions(directions: int, k_dim: int, orthogonal: bool, seed: int, lengths: Lengths) -> Float[Tensor, "m K"]:
    """Return random directions, one in each row: independent normal vectors or orthogonal groups.

    directions: number of directions, m.
    k_dim: width of a direction, K.
    orthogonal: if True, the directions in each group of K are orthogonal.
    seed: seed of the random numbers.
    lengths: lengths of orthogonal directions: "normal" for lengths of normally distributed vectors, "equal" for
        sqrt(K).
    """
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(directions, k_dim, generator=draw)
    if not orthogonal:
        return normal
    blocks = -(-directions // k_dim)
    q, r = torch.linalg.qr(torch.randn(blocks, k_dim, k_dim, generator=draw))
    # QR prefers one sign; with the signs of R's diagonal, every rotation is equally likely
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(0, 1)[:directions]
    return rows * (normal.norm(dim=1, keepdim=True) if lengths == "normal" else k_dim**0.5)
