"""FactorisedDense: a dense synthesizer that predicts two short vectors for each token."""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_at_least, check_multiple, check_option
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.core.request import Request
from kinformer.nn.scores.fixed_length import Synthesizer, take_columns

Second = Literal["tiled", "repeated"]


class FactorisedDense(Synthesizer):
    """Dense synthesizer with factorised scores: each token predicts two short vectors.

    B_ij = A_i[j mod a] C_i[j mod c]

    A dense synthesizer predicts the scores of a query i for all positions j from x_i, without the keys. Choose this
    form over `DenseSynthesizer` for long sequences: it has d (a + c) parameters instead of d L. The vectors A_i and C_i
    are linear in x_i, with widths a and c such that a c = L.

    With `second="tiled"` the scores of a query repeat after the least common multiple of a and c positions. All L
    positions can then have different scores only if a and c have no common divisor. With `second="repeated"` they
    always can.

    heads: number of heads of the layer.
    length: largest number of positions, L; sequences may be shorter.
    first: width a of the first vector, a divisor of `length`.
    second: layout of the second vector over positions. "tiled" is C[j mod c], as in the paper's text. "repeated" is
        C[j div a], which repeats each number a times.

    Errors: ValueError if `first` does not divide `length`, or if the layer has a different number of heads; IndexError
    for a position beyond L. Source: Tay et al., 2020, arXiv:2005.00743, section 3.2.3 (factorised dense).
    """

    def __init__(self, heads: int, length: int, first: int, *, second: Second = "tiled"):
        super().__init__(heads, length)
        self.widths = check_at_least("first", first, 1), check_multiple("length", length, "first", first) // first
        self.second = check_option("second", second, Second)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {
            **super().query_extras(sizes),
            "first": ExtraProjection(self.widths[0]),
            "second": ExtraProjection(self.widths[1]),
        }

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        at, _ = self.table_indices(request.keys.pos, request)
        first, second = self.widths
        other = at % second if self.second == "tiled" else at // first
        extras = request.queries.extras
        return take_columns(extras["first"], at % first) * take_columns(extras["second"], other)


EXAMPLES = (lambda: FactorisedDense(2, 64, 4), lambda: FactorisedDense(2, 63, 9, second="repeated"))
