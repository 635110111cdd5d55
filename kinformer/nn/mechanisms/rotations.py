"""Rotations: random rotations that hash vectors by their angle."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import exact, precise
from kinformer.core.checks import at_least, whole
from kinformer.nn.maps.drawn import redrawn


class Rotations(nn.Module):
    """Angular hashes: the bucket of x in a round is argmax([x R, -x R]). A hash depends on its own vector alone.

    One R per head and round. Those of the rounds of training are drawn from `seed` and saved. A round beyond them,
    which an evaluation may ask for, is drawn from `seed` too, the same however many there are, and is in no checkpoint,
    so weights load into rotations of any number of rounds.

    heads: each has rotations of its own.
    k_dim: the width of what is hashed.
    buckets: buckets of a round, an even number.
    rounds: how often is hashed in training. `rounds` and `eval_rounds` may be set later.
    eval_rounds: how often in eval mode, `rounds` unless given.
    redraw: `after_step` draws those of training anew every so many steps, by seed and step; None for never.
    seed: the draw comes from it.

    Source: Andoni et al., 2015, arXiv:1509.02897.
    """

    r: Float[Tensor, "H K R b"]
    more: Float[Tensor, "H K E b"]
    steps: Int[Tensor, ""]

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        rounds: int,
        *,
        eval_rounds: int | None = None,
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        if at_least("buckets", buckets, 2) % 2:
            raise ValueError(f"buckets={buckets}: a rotation and its negative make one each; give an even number")
        self.redraw, self.seed = None if redraw is None else at_least("redraw", redraw, 1), whole("seed", seed)
        self._rounds = at_least("rounds", rounds, 1)
        self._eval_rounds = None if eval_rounds is None else at_least("eval_rounds", eval_rounds, 1)
        self.register_buffer("r", drawn((heads, k_dim, rounds, buckets // 2), seed))
        self.register_buffer("more", self.r[:, :, :0], persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self._extend()

    @property
    def rounds(self) -> int:
        """How often is hashed in training."""
        return self._rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._rounds = at_least("rounds", rounds, 1)
        self._extend()

    @property
    def eval_rounds(self) -> int:
        """How often is hashed in eval mode."""
        return self._rounds if self._eval_rounds is None else self._eval_rounds

    @eval_rounds.setter
    def eval_rounds(self, rounds: int | None) -> None:
        self._eval_rounds = None if rounds is None else at_least("eval_rounds", rounds, 1)
        self._extend()

    @property
    def now(self) -> Float[Tensor, "H K n b"]:
        """The rotations of the mode that this is in."""
        rounds = self.rounds if self.training else self.eval_rounds
        every = self.r if rounds <= self.r.shape[2] else torch.cat([self.r, self.more.to(self.r)], 2)
        return every[:, :, :rounds]

    def forward(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T n"]:
        groups, wide = x.shape[1], precise(x)
        r = self.now.to(wide.dtype).unflatten(0, (groups, -1))  # [G H/G K n b]
        with exact(x):  # or it would round what was just made precise
            turned = torch.einsum("bgtk,ghkrn->bghtrn", wide, r).flatten(1, 2)  # [B H T n b]
        # of [turned, -turned] the largest: without a copy of both
        (high, at), (low, under) = turned.max(-1), turned.min(-1)
        return torch.where(high >= -low, at, under + turned.shape[-1])

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training, and draw new rotations where it is time."""
        if (seed := redrawn(self.steps, self.redraw, self.seed)) is not None:
            self.r.copy_(drawn(self.r.shape, seed))

    def _extend(self) -> None:
        """Draw the rounds that are not saved."""
        heads, k_dim, saved, half = self.r.shape
        every = drawn((heads, k_dim, max(self.rounds, self.eval_rounds, saved), half), self.seed)
        self.more = every[:, :, saved:].to(self.r)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Weights of another number of rounds: what they have, and the rest as an evaluation draws it."""
        found = state_dict.get(f"{prefix}r")
        if isinstance(found, Tensor) and found.dim() == 4 and found.shape[2] != self.r.shape[2]:
            rest = drawn(self.r.shape, self.seed).to(found)
            state_dict[f"{prefix}r"] = torch.cat([found, rest[:, :, found.shape[2] :]], 2)[:, :, : self.r.shape[2]]
        super()._load_from_state_dict(state_dict, prefix, *args)


def drawn(shape: tuple[int, ...], seed: int) -> Float[Tensor, "H K R b"]:
    """Normal numbers, the first rounds the same however many there are."""
    heads, k_dim, rounds, half = shape
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(heads, k_dim, half, generator=draw) for _ in range(rounds)], 2)
