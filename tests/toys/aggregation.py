"""Weighed: heads weighed by learned numbers before they are joined."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.aggregation import Aggregation


class Weighed(Aggregation):
    """Each head times a number of its own, then side by side. Choose it to see which heads a model wants."""

    def __init__(self, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return (y * self.weight[:, None, None]).transpose(1, 2).flatten(2)  # [B T H*V]


EXAMPLES = (lambda: Weighed(2),)
