"""FactorisedDense: a dense synthesizer that predicts two short vectors instead of one as long as the row."""

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
    """B_ij = A_i[j mod a] C_i[j mod c], with A_i and C_i linear in x_i, of widths a and c, a c = L.

    Choose it over `DenseSynthesizer` for long rows: d (a + c) parameters in place of d L. With the second factor tiled
    as the first one positions repeat after the least common multiple of a and c: all L are told apart only where these
    have no common divisor. "repeated" tells them apart always.

    heads: of the layer.
    length: L, the most positions; rows may be shorter.
    first: a, which divides the length.
    second: how the second factor is laid out over positions: "tiled" is C[j mod c], the paper's text, "repeated" is
        C[j div a], each number a times in turn.

    Errors: ValueError for a length that a does not divide and for a layer of other heads, IndexError for a position
    beyond L. Source: Tay et al., 2020, arXiv:2005.00743, section 3.2.3 (factorised dense).
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
