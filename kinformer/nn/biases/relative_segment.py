"""RelativeSegment: whether query and key are of one segment, and nothing else about segments."""

import torch
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.token_labels import labels_of


class RelativeSegment(Bias):
    """Adds scale * (q_i + u).a_n, n being 0 where the label "segment" is the same for i and j, else 1.

    Choose it over vectors for each segment where a text may have more segments than training saw; XLNet's attention is
    `Plus(TransformerXL(heads, head_dim), RelativeSegment(heads, head_dim))`. `Context(labels={"segment": ..})` names
    the segments; a cache keeps them. Without them it adds nothing.

    heads, head_dim: those of the layer; u and a are learned, each head's own.

    Errors: ValueError where only queries or only keys have segments. Source: Yang et al., 2019, arXiv:1906.08237,
    section 2.5.
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
