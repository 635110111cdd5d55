"""Learned: a trained table of positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.position import Position


class Learned(Position):
    """A vector per position from a table of `length` rows.

    BERT's and GPT-2's choice. Cannot go beyond its length: IndexError says so.

    Source: Gehring et al., 2017, arXiv:1705.03122, section 3.1.
    """

    def __init__(self, d: int, length: int = 1024):
        super().__init__()
        self.table = nn.Embedding(length, d)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        length = self.table.num_embeddings
        if not torch.compiler.is_compiling() and pos.numel() and (most := int(pos.max())) >= length:
            raise IndexError(
                f"position {most} is beyond the table of {length} learned positions; make length larger, or use Rotary"
            )
        return self.table(pos.clamp_min(0)) * (pos >= 0)[..., None]


EXAMPLES = (lambda: Learned(16, 64),)
