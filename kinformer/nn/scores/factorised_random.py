"""FactorisedRandom: a random synthesizer's table as a product of two narrow ones."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, expand_to_batch, take_rows


class FactorisedRandom(Synthesizer):
    """Position i scores position j by R1_i . R2_j: a trained table of low rank for each head.

    Choose it over `RandomSynthesizer` for long rows: 2 L k parameters a head in place of L^2, which are also easier to
    learn than a number for each pair.

    heads: of the layer.
    length: L, the most positions; rows may be shorter.
    rank: k, 8 in the paper; its scores start with a variance of 1, as those of `RandomSynthesizer`.

    Errors: ValueError for a layer of other heads, IndexError for a position beyond L. Source: Tay et al., 2020,
    arXiv:2005.00743, section 3.3 (factorised random).
    """

    def __init__(self, heads: int, length: int, rank: int = 8):
        super().__init__(heads, length)
        shape, std = (heads, length, check_at_least("rank", rank, 1)), rank**-0.25
        self.rows, self.columns = (nn.Parameter(torch.randn(shape) * std) for _ in range(2))

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        (rows, _), (at, _) = (self.table_indices(part.pos, request) for part in (request.queries, request.keys))
        return expand_to_batch(take_rows(self.rows, rows) @ take_rows(self.columns, at).mT, request)


EXAMPLES = (lambda: FactorisedRandom(2, 64, 3),)
