"""Votes: the linear prediction that each head makes for each output capsule in capsule routing."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_multiple


class Votes(nn.Module):
    """Linear votes of each head for each output capsule (part of the result), with a matrix for each pair.

    V_hn = y_h W_hn, each d / capsules wide

    heads, v_dim: number of heads, which are the input capsules, and the width of each.
    d: width of all output capsules together.
    capsules: number of output capsules; as many as heads by default.

    Errors: ValueError if capsules do not divide d.
    """

    def __init__(self, heads: int, v_dim: int, d: int, capsules: int | None = None):
        super().__init__()
        self.capsules = check_at_least("capsules", heads if capsules is None else capsules, 1)
        width = check_multiple("d", check_at_least("d", d, 1), "capsules", self.capsules) // self.capsules
        shape = check_at_least("heads", heads, 1), self.capsules, check_at_least("v_dim", v_dim, 1), width
        self.weight = nn.Parameter(torch.randn(shape) * v_dim**-0.5)

    def forward(self, y: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T H N W"]:
        return torch.einsum("bhtv,hnvw->bthnw", y, self.weight.to(y.dtype))
