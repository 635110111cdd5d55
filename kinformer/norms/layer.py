"""LayerNorm: mean 0 and variance 1 over a token's features, then a learned gain and shift."""

from torch import nn


class LayerNorm(nn.LayerNorm):
    """PyTorch's LayerNorm over width d: the usual choice. Source: Ba et al., 2016, arXiv:1607.06450."""

    def __init__(self, d: int, *, eps: float = 1e-5, bias: bool = True):
        super().__init__(d, eps=eps, bias=bias)


EXAMPLES = (lambda: LayerNorm(16),)
