"""RelativeSegment: whether query and key are of one segment, and nothing else about segments."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.biases.etc_labels import segments_of
from kinformer.core.bias import Bias, ScoreFn, entry
from kinformer.core.layer import Context


class RelativeSegment(Bias):
    """Adds scale * (q_i + u).a_n, n being 0 where `ctx.below["segment"]` [B T] is the same for i and j, else 1.

    Choose it over vectors for each segment where a text may have more segments than training saw; XLNet's attention is
    `Plus(TransformerXL(heads, head_dim), RelativeSegment(heads, head_dim))`. u and a are learned, each head's own.
    Without segments it adds nothing. Errors: ValueError for segments of other tokens than the queries and keys.
    Source: Yang et al., 2019, arXiv:1906.08237, section 2.5.
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.u = nn.Parameter(torch.randn(heads, head_dim) * 0.02)
        self.keys = nn.Parameter(torch.randn(heads, 2, head_dim) * 0.02)

    def bind(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        segment = segments_of(ctx, q, k, type(self).__name__)
        term = torch.einsum("bhtk,hnk->bhtn", q + self.u[:, None], self.keys) * scale

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if segment is None:
                return s
            return s + entry(term, b, h, i, (segment[b, i] != segment[b, j]).long())

        return score


EXAMPLES = (lambda: RelativeSegment(2, 8),)
COMPILES = True
