"""RandomSynthesizer: a table of scores by position, the same for all texts."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_flag, check_in_range
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, expand_to_batch, take_columns, take_rows


class RandomSynthesizer(Synthesizer):
    """Table of scores for pairs of positions in each head, random at first, then trained or fixed.

    score_ij = R_ij

    Choose it if positions decide which tokens belong together, or to see how little attention a task needs. It cannot
    find tokens by their content. A score costs one table lookup. No queries or keys are needed, so the layer's
    projection can be `ValueProjection`.

    heads: number of heads of the layer; each head has its own R.
    length: largest number of positions, L; shorter sequences use the upper left corner of R.
    trained: if False, R keeps its random initial numbers, the paper's fixed form. R is then a buffer, which checkpoints
        contain.
    std: standard deviation of the initial numbers; neither the paper nor its code gives it.

    Errors: ValueError if the layer has a different number of heads; IndexError for a position beyond L. Source: Tay et
    al., 2020, arXiv:2005.00743, section 3.3 (random synthesizer).
    """

    table: Tensor

    def __init__(self, heads: int, length: int, *, trained: bool = True, std: float = 1.0):
        super().__init__(heads, length)
        table = torch.randn(heads, length, length) * check_in_range("std", std, 0, math.inf, open_end=True)
        if check_flag("trained", trained):
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        (rows, _), (at, end) = (self.table_indices(part.pos, request) for part in (request.queries, request.keys))
        return expand_to_batch(take_columns(take_rows(self.table[..., :end], rows), at), request)


EXAMPLES = (lambda: RandomSynthesizer(2, 64), lambda: RandomSynthesizer(2, 64, trained=False, std=2.0))
