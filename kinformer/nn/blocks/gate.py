"""Gate: what all joins of a GTrXL share: the norm before the sublayer, a ReLU behind it, and a gate for the sum."""

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
    """g(x, y) with y = dropout(relu(f(norm(x)))): a sublayer is told what is normed, the stream itself never is.

    Two linear maps would follow one another along the stream, the end of one sublayer and the start of the next, so a
    ReLU stands between. What attention with a memory is told, it norms itself (`Normed`), with `nn.Identity()` here.

    dropout: the share of y that training drops.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = check_in_range("dropout", dropout, 0, 1)

    def forward(self, x: Tensor, f: Callable[[Tensor], Out], norm: nn.Module) -> Out:
        out = f(norm(x))
        return out._replace(y=self.gate(x, F.dropout(F.relu(out.y), self.dropout, self.training)))

    @abstractmethod
    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The stream x and what a sublayer made of it, as one."""


class BiasedGate(Gate):
    """A gate that is told by `b_g`, a learned number for each feature, how near to the identity it starts.

    d: the width.
    b_g: where all of them start, from 0 (a gate half open).
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(dropout)
        start = check_in_range("b_g", b_g, 0, math.inf, open_end=True)
        self.b_g = nn.Parameter(torch.full((check_at_least("d", d, 1),), float(start)))
