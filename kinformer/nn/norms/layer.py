"""LayerNorm: mean 0 and variance 1 over a token's features, then a learned gain and shift."""

import math

import torch
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.keyword_hints import KeywordHints


class LayerNorm(nn.LayerNorm, KeywordHints):
    """PyTorch's layer normalisation over the features of each token, as in the original Transformer.

    y = (x - mean) / sqrt(variance + eps) * gain + shift

    d: width of a token.
    eps: number added to the variance.
    bias: whether there is a shift.

    Source: Ba et al., 2016, arXiv:1607.06450.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, bias: bool = True):
        super().__init__(check_at_least("d", d, 1), eps=check_in_range("eps", eps, 0, math.inf), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        # the operator itself: in a decoding step, the checks of the functional form cost more than the norm
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


EXAMPLES = (lambda: LayerNorm(16),)
