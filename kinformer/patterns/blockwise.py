"""Blockwise: each block reads one other block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern, Spelled
from kinformer.patterns.blocks import Blocks


@dataclass(frozen=True)
class Blockwise(Spelled):
    """j // size = permutation[i // size]; false beyond the permutation.

    BlockBERT gives each head a permutation: `Heads(Blockwise(..), ..)`.

    Source: Qiu et al., 2019, arXiv:1911.02972, section 3.
    """

    permutation: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        if sorted(self.permutation) != list(range(len(self.permutation))):
            raise ValueError(f"{self}: the permutation must hold each of 0..{len(self.permutation) - 1} once")

    @property
    def expression(self) -> Pattern:
        return Blocks(tuple((block,) for block in self.permutation), self.size)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(self.expression(b, h, q, k))


EXAMPLES = (Blockwise((1, 2, 0), 4), Blockwise((0, 1), 5))
