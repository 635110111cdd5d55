"""FactorisedRandom: a random synthesizer with a table of low rank."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, expand_to_batch, take_rows


class FactorisedRandom(Synthesizer):
    """Random synthesizer (scores by position only) with a trained table of low rank for each head.

    score_ij = R1_i.R2_j

    Choose it over `RandomSynthesizer` for long sequences: each head has 2 L k parameters instead of L^2. In training,
    each parameter gets gradients from many pairs instead of one.

    heads: number of heads of the layer.
    length: largest number of positions, L; sequences may be shorter.
    rank: rank k of the table; 8 in the paper. Initial scores have a variance of 1, as in `RandomSynthesizer`.

    Errors: ValueError if the layer has a different number of heads; IndexError for a position beyond L. Source: Tay et
    al., 2020, arXiv:2005.00743, section 3.3 (factorised random).
    """

    def __init__(self, heads: int, length: int, rank: int = 8):
        super().__init__(heads, length)
        shape, std = (heads, length, check_at_least("rank", rank, 1)), rank**-0.25
        self.rows, self.columns = (nn.Parameter(torch.randn(shape) * std) for _ in range(2))

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        (rows, _), (at, _) = (self.table_indices(part.pos, request) for part in (request.queries, request.keys))
        return expand_to_batch(take_rows(self.rows, rows) @ take_rows(self.columns, at).mT, request)


EXAMPLES = (lambda: FactorisedRandom(2, 64, 3),)
