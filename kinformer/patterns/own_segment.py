"""OwnSegment: a global token reads the tokens of its own segment alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import a_table, at_least
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class OwnSegment(Pattern):
    """i >= n, or j < n, or ids[b, i] = ids[b, j]: a hard mask in one direction, from global to long tokens.

    Pass it as `Context(only=...)`.

    ids: the segment of each absolute position; a position beyond them is of none.
    n: how many positions at the front are global.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.3 (hard g2l masks).
    """

    ids: Int[Tensor, "B P"]
    n: int

    def __post_init__(self) -> None:
        a_table("OwnSegment.ids", self.ids)
        at_least("OwnSegment.n", self.n, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        last = self.ids.shape[1] - 1
        known = torch.as_tensor((q <= last) & (k <= last))
        own = self.ids[b, torch.as_tensor(q).clamp(max=last)] == self.ids[b, torch.as_tensor(k).clamp(max=last)]
        return torch.as_tensor((q >= self.n) | (k < self.n)) | (own & known)


EXAMPLES = (OwnSegment(torch.tensor([[0, 1, 2] + [0] * 4 + [1] * 3 + [2] * 54] * 8), 3),)
