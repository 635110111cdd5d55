"""Gate: a join that begins as the identity; ReZero: blocks of it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kinformer.core.layer import Layer, Out
from kinformer.core.residual_block import Join, ResidualBlock


class Gate(Join):
    """x + g f(x), where g is learned and begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(norm(x))
        return out._replace(y=x + self.g * out.y)


class ReZero(ResidualBlock):
    """Sublayers, each x + g f(x): deep stacks without norms. Source: Bachlechner et al., 2020, arXiv:2003.04887."""

    def __init__(self, *layers: Layer):
        super().__init__(layers, [Gate() for _ in layers], [nn.Identity() for _ in layers])


def _block() -> ReZero:
    from kinformer.core.patterns.causal import Causal
    from kinformer.nn.attention import Attention
    from kinformer.nn.feedforward.mlp import MLP
    from kinformer.nn.mechanisms.softmax import Softmax
    from kinformer.nn.projections.qkv import QKV

    return ReZero(Attention(QKV(16, 2), Softmax(Causal())), MLP(16))


EXAMPLES = (_block, Gate)
