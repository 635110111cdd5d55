"""DenseSynthesizer: scores of all positions that each token predicts from its own content."""

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
    """Scores of all positions that each token predicts from its own content, whatever the keys are.

    B_i = W2 ReLU(W1 x_i + b1) + b2, with B_i in R^L and score_ij = B_ij

    Choose it if the content of a query decides which positions it should read, whatever tokens stand there. It needs no
    queries or keys, so the layer's projection can be `ValueProjection`. A score takes no less time than a product q.k.

    heads: number of heads of the layer; each head has its own W1, an extra projection that the layer owns.
    length: largest number of positions, L; sequences may be shorter.
    hidden: number of hidden units in each head; the width of a head in the authors' code.
    shared: if True, all heads share W2 and b2, as in the authors' code.

    Errors: ValueError if the layer has a different number of heads; IndexError for a position beyond L. Source: Tay et
    al., 2020, arXiv:2005.00743, section 3.2.
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
