"""Gate: the base of all GTrXL joins: a norm before the sublayer, a ReLU after it, and a gated sum."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.layer import Out
from kinformer.core.residual_block import Join

__all__ = ["BiasedGate", "Gate"]


class Gate(Join):
    """Base class of residual joins that combine the residual stream x and a sublayer's output y by a gate.

    g(x, y) with y = dropout(relu(f(norm(x))))

    Subclasses implement `gate`, which is g. The norm applies only to the input of the sublayer f, never to the residual
    stream. The end of one sublayer and the start of the next are both linear maps, so a ReLU separates them. Attention
    with a memory applies the norm itself (projection `Normed`); the norm of the block must then be `nn.Identity()`.

    dropout: probability of dropping a feature of y in training.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = check_in_range("dropout", dropout, 0, 1)

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(norm(x))
        return out._replace(y=self.gate(x, F.dropout(F.relu(out.y), self.dropout, self.training)))

    @abstractmethod
    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the new residual stream from the old one, x, and the output y of a sublayer."""


class BiasedGate(Gate):
    """Base class of gates with a learned bias per feature, which sets how much of y passes at first.

    With a large b_g little of the sublayer's output y passes at the start, so the block is near the identity.

    d: width of the residual stream.
    b_g: initial value of all d biases, at least 0. With 0 the gate starts half open.
    dropout: probability of dropping a feature of y in training.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(dropout)
        start = check_in_range("b_g", b_g, 0, math.inf, open_end=True)
        self.b_g = nn.Parameter(torch.full((check_at_least("d", d, 1),), float(start)))
