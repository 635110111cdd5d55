"""A Request from tensors, as `attend` makes it: what scores, weights and pieces are tested on."""

from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.heads import Keys, Queries
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.scores.product import Product


def make_request(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    q_pos: Tensor,
    k_pos: Tensor,
    pattern: Pattern | None = None,
    bias: Bias | None = None,
    score: Score | None = None,
    segments: tuple[Tensor, Tensor] | None = None,
    **keywords: object,
) -> Request:
    """Keys are their own values unless some are given; `segments` are those of queries and keys."""
    asks, key_labels = ({}, {}) if segments is None else ({"segment": labels} for labels in segments)
    return Request(
        Queries(q, q_pos, labels=asks),
        Keys(k, k if v is None else v, k_pos, labels=key_labels),
        Full() if pattern is None else pattern,
        Product() if score is None else score,
        bias,
        q.shape[-1] ** -0.5,
        **keywords,
    )
