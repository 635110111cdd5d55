"""Since: nothing before a given position."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import a_table
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Since(Pattern):
    """j >= first[b, i]: episodes or documents that start in the middle of a row.

    Pass it as `Context(only=Since(first))`.

    first: for each absolute position the earliest one that it reads; a query beyond them reads nothing.
    """

    first: Int[Tensor, "B P"]

    def __post_init__(self) -> None:
        a_table("Since.first", self.first)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        last = self.first.shape[1] - 1
        return torch.as_tensor(k >= self.first[b, torch.as_tensor(q).clamp(max=last)]) & torch.as_tensor(q <= last)


EXAMPLES = (Since(torch.tensor([[0] * 6 + [6] * 58] * 8)),)
