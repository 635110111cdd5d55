"""RMSNorm: root mean square 1 over a token's features, then a learned gain."""

from torch import nn


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMSNorm over width d.

    Llama's choice, cheaper than LayerNorm. Source: Zhang and Sennrich, 2019, arXiv:1910.07467.
    """

    def __init__(self, d: int, *, eps: float = 1e-6):
        super().__init__(d, eps=eps)


EXAMPLES = (lambda: RMSNorm(16),)
