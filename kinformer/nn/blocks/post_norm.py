"""PostNorm: norm(x + f(x))."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.layer import Layer, Out
from kinformer.core.residual_block import Join, ResidualBlock, check_layers, make_norms
from kinformer.nn.norms.layer import LayerNorm


class NormLast(Join):
    """A residual join with the norm after the sum: norm(x + dropout(f(x))).

    dropout: probability of dropping a feature of f(x) in training.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = check_in_range("dropout", dropout, 0, 1)

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(x)
        return out._replace(y=norm(x + (F.dropout(out.y, self.dropout) if self.training else out.y)))


class PostNorm(ResidualBlock):
    """A block of sublayers with the norm after each residual sum, as in the original Transformer.

        norm(x + dropout(f(x)))

    An example is `PostNorm(Attention(QKV(d, heads), mechanism), MLP(d))`. Choose it to repeat the original Transformer
    or BERT. Deep stacks of it need a warm-up of the learning rate; `PreNorm` does not.

    layers: the sublayers f, in order.
    norm: makes a norm from a width, one for each sublayer.
    dropout: probability of dropping a feature of a sublayer's output in training.

    Source: Vaswani et al., 2017, arXiv:1706.03762, 3.1.
    """

    def __init__(self, *layers: Layer, norm: Callable[[int], nn.Module] = LayerNorm, dropout: float = 0.0):
        check_layers(layers)
        super().__init__(layers, [NormLast(dropout) for _ in layers], make_norms(norm, layers))


def _example() -> PostNorm:
    return PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))


EXAMPLES = (_example,)
