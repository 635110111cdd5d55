"""Chance: random numbers for training that do not depend on chunks, padding or other rows."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_whole_number


class Chance(nn.Module):
    """Uniform random numbers that depend only on a seed, the training step and given integers.

    The integers are, for example, a head, a block or a position. The numbers do not depend on how a row is cut or on
    the other rows. If gradient checkpointing recomputes a layer, it gets the same numbers. Every training step has
    different ones. Rows of a batch share them unless one of the integers differs between rows, such as `row_bits` of
    their vectors. These vectors depend on weights, so an `Agent` of reinforcement learning sets `by_content` to False.
    A rollout then gets the same numbers before and after a learning step.

    seed: seed of the numbers.
    """

    steps: Int[Tensor, ""]
    by_content = True

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = check_whole_number("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return a random number between 0 and 1, both excluded, for each entry of the broadcast `numbers`."""
        return hashed_uniform(self.steps + self.seed * 0x9E3779B1, *numbers)

    def gumbel(self, *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return Gumbel noise. The argmax of logits plus this noise is a sample of their softmax."""
        return -(-self(*numbers).log()).log()

    def row_bits(self, x: Float[Tensor, "*B n"]) -> Int[Tensor, "*B"]:
        """Return an integer for each vector x, so that other rows get other numbers; 0 without `by_content`."""
        return sign_bits(x) if self.by_content else torch.zeros_like(x[..., 0], dtype=torch.long)

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a training step, so that the next step gets other random numbers."""
        self.steps += 1


def hashed_uniform(seed: Int[Tensor, ""], *numbers: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return numbers in the open interval (0, 1) that depend only on the seed and on integers.

    seed: integer seed.
    numbers: integers that are broadcast together.
    """
    x = _mix_bits(seed)
    for number in numbers:
        x = _mix_bits(x * 31 + number)
    return ((_mix_bits(x) >> 20 & 0xFFFFFF) + 0.5) / 2**24


def sign_bits(x: Float[Tensor, "*B n"]) -> Int[Tensor, "*B"]:
    """Hash each vector x to an integer: the signs of its first 32 numbers are the bits.

    With `hashed_uniform` it gives equal random numbers for equal rows and different ones for different rows. Rounding
    changes the hash only if a number is close to 0.
    """
    positive = (x.detach()[..., :32] > 0).long()
    return (positive << torch.arange(positive.shape[-1], device=x.device)).sum(-1)


def content(x: Float[Tensor, "B P S n"], pos: Int[Tensor, "B #P S"]) -> Int[Tensor, "B P S"]:
    """Hash each token by vector and position to an integer; sums of these hashes identify rows.

    x: vectors of the tokens, [B, P, S, n].
    pos: positions of the tokens, [B, #P, S]; the hash of padding (-1) is 0.
    """
    return torch.where(pos >= 0, _mix_bits(_mix_bits(sign_bits(x)) + pos), 0)


def _mix_bits(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Mix the bits of integers with xorshift64* (Vigna, 2014), which changes every number except 0."""
    x = x ^ (x >> 12)
    x = x ^ (x << 25)
    return (x ^ (x >> 27)) * 2685821657736338717 + 1442695040888963407
