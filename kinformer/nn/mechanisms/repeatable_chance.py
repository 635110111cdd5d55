"""Chance: random numbers of training that do not depend on how a row is cut, padded or batched."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_whole_number


class Chance(nn.Module):
    """Uniform numbers that a seed, the step of training and any whole numbers decide: a head, a block, a position.

    So the numbers do not depend on how a row is cut or on the other rows, and a recomputed layer draws the same ones.
    Every step has other numbers. Rows of a batch share them unless one of the integers differs between rows, such as
    `row_bits` of their content. Content depends on weights, so an `Agent` sets `by_content` to False. A learning step
    between two readings of a rollout then changes no draw.
    """

    steps: Int[Tensor, ""]
    by_content = True

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = check_whole_number("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A number between 0 and 1, neither included, for each entry of these broadcast together."""
        return hashed_uniform(self.steps + self.seed * 0x9E3779B1, *numbers)

    def gumbel(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Gumbel noise: the largest of logits with it is a sample of their softmax."""
        return -(-self(*numbers).log()).log()

    def row_bits(self, x: Float[Tensor, "*B n"]) -> Int[Tensor, "*B"]:
        """A whole number for each vector by which rows of other content draw apart; 0 unless `by_content`."""
        return sign_bits(x) if self.by_content else torch.zeros_like(x[..., 0], dtype=torch.long)

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training."""
        self.steps += 1


def hashed_uniform(seed: Int[Tensor, ""], *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A number between 0 and 1, neither included, that a seed and whole numbers decide, broadcast together."""
    x = _mix_bits(seed)
    for number in numbers:
        x = _mix_bits(x * 31 + number)
    return ((_mix_bits(x) >> 20 & 0xFFFFFF) + 0.5) / 2**24


def sign_bits(x: Float[Tensor, "*B n"]) -> Int[Tensor, "*B"]:
    """Hash each vector to an integer: the signs of its first 32 numbers are the bits.

    Choose it to draw equal numbers for equal rows and different numbers for different rows. Rounding changes the hash
    only if a number is close to 0.
    """
    positive = (x.detach()[..., :32] > 0).long()
    return (positive << torch.arange(positive.shape[-1], device=x.device)).sum(-1)


def content(x: Float[Tensor, "B P S n"], pos: Int[Tensor, "B #P S"]) -> Int[Tensor, "B P S"]:
    """Hash each token by vector and position to an integer, 0 at padding; sums of hashes identify rows."""
    return torch.where(pos >= 0, _mix_bits(_mix_bits(sign_bits(x)) + pos), 0)


def _mix_bits(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Bits of whole numbers stirred: xorshift64* (Vigna, 2014), of which no number but 0 stays what it is."""
    x = x ^ (x >> 12)
    x = x ^ (x << 25)
    return (x ^ (x >> 27)) * 2685821657736338717 + 1442695040888963407
