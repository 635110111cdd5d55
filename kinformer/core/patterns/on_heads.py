"""OnHeads: all pairs on some heads, no pairs on the others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Index, Pattern
from kinformer.core.patterns.full import Full


@dataclass(frozen=True)
class OnHeads(Pattern):
    """All pairs on one head of each group of heads, no pairs on the other heads.

    h mod of = turn

    Choose it to give a part of a pattern only to some heads. With `Causal() & (Band(64) | OnHeads(0, 4))`, heads 0, 4,
    8 and so on read all earlier keys, and the others read a window. To list a pattern for each head, use `Heads`:
    `Heads(A, B)` is `OnHeads(0, 2) & A | OnHeads(1, 2) & B`.

    turn: index of the head in each group, from 0.
    of: number of heads in a group.

    Errors: ValueError if turn is not below of.
    """

    turn: int
    of: int

    def __post_init__(self) -> None:
        check_at_least("OnHeads.of", self.of, 1)
        if check_at_least("OnHeads.turn", self.turn, 0) >= self.of:
            raise ValueError(f"OnHeads.turn={self.turn}: give a number below OnHeads.of={self.of}")

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(h % self.of == self.turn) & (q >= 0)

    def of_head(self, h: int) -> Pattern:
        return Full() if h % self.of == self.turn else ~Full()

    def period(self) -> int | None:
        return 1


EXAMPLES = (OnHeads(0, 2), OnHeads(1, 3))
