"""RandomSynthesizer: a table says who reads whom, the same for all texts."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_flag, check_in_range
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, expand_to_batch, take_columns, take_rows


class RandomSynthesizer(Synthesizer):
    """Position i scores position j by R_ij: a matrix for each head, drawn once and trained, or left as it was drawn.

    Choose it where positions alone say what belongs together, and to see how little attention a task needs. It looks
    nothing up by content. A score costs one look into a table, and no queries or keys are needed (`ValueProjection`).

    heads: of the layer; each has an R of its own.
    length: L, the most positions; rows may be shorter, and read its upper left corner.
    trained: False keeps R as it was drawn, the paper's fixed form: a buffer, saved with the weights.
    std: of the numbers as they are drawn, which neither paper nor code tell.

    Errors: ValueError for a layer of other heads, IndexError for a position beyond L. Source: Tay et al., 2020,
    arXiv:2005.00743, section 3.3 (random synthesizer).
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
