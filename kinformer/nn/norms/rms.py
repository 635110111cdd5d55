"""RMSNorm: root mean square 1 over a token's features, then a learned gain."""

import math

from torch import nn

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.keyword_hints import KeywordHints


class RMSNorm(nn.RMSNorm, KeywordHints):
    """PyTorch's normalisation by the root mean square of each token's features.

    y = x / sqrt(mean of squares + eps) * gain

    Llama uses it. It needs fewer operations than `LayerNorm`, because it subtracts no mean and has no shift.

    d: width of a token.
    eps: number added to the mean of squares.

    Source: Zhang and Sennrich, 2019, arXiv:1910.07467.
    """

    def __init__(self, d: int, *, eps: float = 1e-6):
        super().__init__(check_at_least("d", d, 1), eps=check_in_range("eps", eps, 0, math.inf))


EXAMPLES = (lambda: RMSNorm(16),)
