"""Document: several documents packed into one row do not read each other."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import a_table
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Document(Pattern):
    """ids[b, i] = ids[b, j]: pass it as `Context(only=Document(ids))`.

    ids: the document of each absolute position; a position beyond them reads nothing.
    """

    ids: Int[Tensor, "B P"]

    def __post_init__(self) -> None:
        a_table("Document.ids", self.ids)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        last = self.ids.shape[1] - 1
        known = torch.as_tensor((q <= last) & (k <= last))
        q, k = torch.as_tensor(q).clamp(max=last), torch.as_tensor(k).clamp(max=last)
        return (self.ids[b, q] == self.ids[b, k]) & known


EXAMPLES = (Document(torch.tensor([[0] * 5 + [1] * 7 + [2] * 52] * 8)),)
