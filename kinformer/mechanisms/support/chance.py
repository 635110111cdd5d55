"""Chance: numbers drawn in training by arithmetic, the same for every row, however it is cut or padded."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import whole


class Chance(nn.Module):
    """Uniform numbers that a seed, the step of training and any whole numbers decide: a head, a block, a position.

    So they are the same wherever a row is cut, beside which rows it stands, and where a layer is computed again; rows
    of one batch share them, and every step has others.
    """

    steps: Int[Tensor, ""]

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = whole("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A number between 0 and 1, neither included, for each entry of these broadcast together."""
        x = _stirred(self.steps + self.seed * 0x9E3779B1)
        for number in numbers:
            x = _stirred(x * 31 + number)
        return ((_stirred(x) >> 20 & 0xFFFFFF) + 0.5) / 2**24

    def gumbel(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Gumbel noise: the largest of logits with it is a sample of their softmax."""
        return -(-self(*numbers).log()).log()

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training."""
        self.steps += 1


def _stirred(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Bits of whole numbers stirred: xorshift64* (Vigna, 2014), of which no number but 0 stays what it is."""
    x = x ^ (x >> 12)
    x = x ^ (x << 25)
    return (x ^ (x >> 27)) * 2685821657736338717 + 1442695040888963407
