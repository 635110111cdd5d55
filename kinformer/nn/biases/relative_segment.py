"""RelativeSegment: a learned bias that tells whether query and key are in the same segment."""

import torch
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.token_labels import labels_of


class RelativeSegment(Bias):
    """Learned bias that tells whether query and key are in the same segment.

    bias_ij = scale * (q_i + u).a_n, with n = 0 if i and j are in the same segment, else n = 1

    Choose it over an embedding for each segment if a text may have more segments than in training. The attention of
    XLNet is `Plus(TransformerXL(heads, head_dim), RelativeSegment(heads, head_dim))`. `Context(labels={"segment":
    ...})` gives the segments, and a cache keeps them. Without segments the bias adds nothing.

    heads: number of heads of the layer; each head learns its own u and a.
    head_dim: width of a query.

    Errors: ValueError if the layer has a different number of heads, or if only queries or only keys have segments.
    Source: Yang et al., 2019, arXiv:1906.08237, section 2.5.
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.u = nn.Parameter(
            torch.randn(check_at_least("heads", heads, 1), check_at_least("head_dim", head_dim, 1)) * 0.02
        )
        self.keys = nn.Parameter(torch.randn(heads, 2, head_dim) * 0.02)

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"a RelativeSegment of {len(self.u)} heads", len(self.u), piece)
        segments = labels_of(piece, "segment", "RelativeSegment")
        if segments is None:
            return lambda s, b, h, i, j: s
        q_segment, k_segment = segments
        # [B H T K] [H 2 K]
        q = piece.queries.q + self.u[:, None]
        term = torch.einsum("bhtk,hnk->bhtn", q, self.keys.to(q.dtype)) * piece.scale

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + entry(term, b, h, i, (q_segment[b, i] != k_segment[b, j]).long())

        return score


EXAMPLES = (lambda: RelativeSegment(2, 8),)
