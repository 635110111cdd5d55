"""Nobody: no token leaves."""

from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import State
from kinformer.exits.confidence import Head, States
from kinformer.exits.rules import Leaves, Rule


class Nobody(Rule):
    """No token leaves before the last layer: the full model, at what it costs without exits.

    Choose it for what calibration falls back to where no threshold is proven, and to measure what exits save.
    """

    def forward(self, states: States, pos: Int[Tensor, "B T"], told: State = (), head: Head | None = None) -> Leaves:
        return pos < pos
