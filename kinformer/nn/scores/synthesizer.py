"""DenseSynthesizer: each token says by itself which positions it reads."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, take_columns


class DenseSynthesizer(Synthesizer):
    """B_i = W2 ReLU(W1 x_i + b1) + b2 in R^L; token i scores position j by B_ij, whatever stands there.

    Choose it where what a token is says where to look, and no token has to be looked up by what it is: it needs neither
    queries nor keys, so `ValueProjection` may project for it. A score costs no less than a product.

    heads: of the layer; each has a W1 of its own, which the layer owns as a side.
    length: L, the most positions; rows may be shorter.
    hidden: units between the two matrices, of each head; a head's width in the authors' code.
    shared: one W2 and b2 for all heads, as in the authors' code.

    Errors: ValueError for a layer of other heads, IndexError for a position beyond L. Source: Tay et al., 2020,
    arXiv:2005.00743, section 3.2.
    """

    def __init__(self, heads: int, length: int, hidden: int, *, shared: bool = False):
        super().__init__(heads, length)
        self.hidden = check_at_least("hidden", hidden, 1)
        tables = 1 if check_flag("shared", shared) else heads
        bound = hidden**-0.5
        self.weight = nn.Parameter(torch.empty(tables, hidden, length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(tables, 1, length).uniform_(-bound, bound))

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {**super().query_extras(sizes), "dense": ExtraProjection(self.hidden)}

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        at, end = self.table_indices(request.keys.pos, request)
        hidden = request.queries.extras["dense"].relu()  # [B H T hidden]
        return take_columns(hidden @ self.weight[..., :end] + self.bias[..., :end], at)


EXAMPLES = (lambda: DenseSynthesizer(2, 64, 6), lambda: DenseSynthesizer(2, 64, 6, shared=True))
