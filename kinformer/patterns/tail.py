"""Tail: the last tokens of every row are global."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import a_table
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Tail(Pattern):
    """i >= first[b] or j >= first[b]: what stands at the end of a row reads all and is read by all.

    Pass it as `Context(also=...)`; `GlobalEnds` makes it of the last block of each row.

    first: the position in each row from which on tokens are global.

    Source: Zaheer et al., 2020, arXiv:2007.14062, section 2: the first and the last block are global.
    """

    first: Int[Tensor, "B 1"]

    def __post_init__(self) -> None:
        if a_table("Tail.first", self.first).shape[1] != 1:
            raise ValueError(f"Tail.first is of shape {list(self.first.shape)}; give one position for each row, [B 1]")

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        first = self.first[b, 0]
        return torch.as_tensor(q >= first) | torch.as_tensor(k >= first)


EXAMPLES = (Tail(torch.tensor([[9]] * 8)),)
