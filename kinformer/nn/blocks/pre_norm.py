"""PreNorm: x + f(norm(x))."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.layer import Layer, Out
from kinformer.core.residual_block import Join, ResidualBlock, check_layers, make_norms
from kinformer.nn.norms.layer import LayerNorm


class PreNormJoin(Join):
    """A residual join with the norm before the sublayer: x + dropout(f(norm(x))).

    dropout: probability of dropping a feature of f(norm(x)) in training.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = check_in_range("dropout", dropout, 0, 1)

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(norm(x))
        return Out(x + (F.dropout(out.y, self.dropout) if self.training else out.y), *out[1:])


class PreNorm(ResidualBlock):
    """A block of sublayers with the norm before each sublayer.

        x + dropout(f(norm(x)))

    An example is `PreNorm(Attention(QKV(d, heads), mechanism), MLP(d))`. Choose it for deep stacks: it trains without
    warm-up at any depth. Add one more norm after a stack of these blocks.

    layers: the sublayers f, in order.
    norm: makes a norm from a width, one for each sublayer.
    dropout: probability of dropping a feature of a sublayer's output in training.

    Source: Xiong et al., 2020, arXiv:2002.04745.
    """

    def __init__(self, *layers: Layer, norm: Callable[[int], nn.Module] = LayerNorm, dropout: float = 0.0):
        check_layers(layers)
        super().__init__(layers, [PreNormJoin(dropout) for _ in layers], make_norms(norm, layers))


def _example() -> PreNorm:
    return PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))


EXAMPLES = (_example,)
