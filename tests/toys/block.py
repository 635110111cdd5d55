"""ReZero: blocks that begin as the identity."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.core.block import Block, Join
from kinformer.core.layer import Layer, Out
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal


class Gate(Join):
    """x + g f(x), where g is learned and begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(norm(x))
        return out._replace(y=x + self.g * out.y)


class ReZero(Block):
    """Sublayers, each x + g f(x): deep stacks without norms. Source: Bachlechner et al., 2020, arXiv:2003.04887."""

    def __init__(self, *layers: Layer):
        super().__init__(layers, [Gate() for _ in layers], [nn.Identity() for _ in layers])


EXAMPLES = (lambda: ReZero(Attention(16, 2, Softmax(Causal())), MLP(16)),)
