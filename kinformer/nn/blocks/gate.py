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
    """A join that combines the stream x and a sublayer's output y by a gate.

    g(x, y) with y = dropout(relu(f(norm(x))))

    The norm applies only to the input of the sublayer, never to the stream. The end of one sublayer and the start of
    the next are both linear maps, so a ReLU separates them. Attention with a memory norms its input itself (`Normed`).
    Give `nn.Identity()` as the norm here in this case.

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
        """Combine the stream x and the output y of a sublayer."""


class BiasedGate(Gate):
    """A gate with a learned bias `b_g` per feature, which sets how near to the identity it starts.

    d: width of the stream.
    b_g: initial value of all d biases, at least 0. With 0 the gate starts half open.
    dropout: probability of dropping a feature of y in training.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(dropout)
        start = check_in_range("b_g", b_g, 0, math.inf, open_end=True)
        self.b_g = nn.Parameter(torch.full((check_at_least("d", d, 1),), float(start)))
