"""OutByStream: separate output matrices for global tokens and for all other tokens."""

from jaxtyping import Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.aggregation import Aggregation
from kinformer.core.checks import check_at_least, check_part


class OutByStream(Aggregation):
    """Aggregation of heads that uses `wide` for the first n positions and `long` for all others.

    The first n positions are global tokens, which exchange information with all tokens; the others are the tokens of
    the text ("long"). Choose it if queries, keys and values of the two groups have different projections (`ByStream`,
    `GlobalSoftmax`, `FourPieces`). The authors' code of ETC has two output matrices by default.

    n: number of global tokens, at positions 0 .. n - 1.
    wide, long: aggregations for global tokens and for all others.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.2.
    """

    def __init__(self, n: int, wide: Aggregation, long: Aggregation):
        super().__init__()
        self.n = check_at_least("n", n, 0)
        for name, part in (("wide", wide), ("long", long)):
            check_part(name, part, Aggregation, "an aggregation, such as OutProjection(heads, v_dim, d)")
        self.wide, self.long = wide, long

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.wide(y, pos).where((pos < self.n)[..., None], self.long(y, pos))  # [B T 1]


def _example() -> OutByStream:
    return OutByStream(2, kf.OutProjection(2, 8, 16), kf.OutProjection(2, 8, 16))


EXAMPLES = (_example,)
