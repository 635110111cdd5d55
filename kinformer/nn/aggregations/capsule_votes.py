"""Votes: what each head says that each output capsule should be."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_multiple


class Votes(nn.Module):
    """V_hn = y_h W_hn: a matrix for each pair of a head and an output capsule, d / capsules wide.

    heads, v_dim: the input capsules, and the width of each.
    d: the width of all output capsules side by side.
    capsules: how many there are; as many as heads unless given.

    Errors: ValueError for capsules that do not divide d.
    """

    def __init__(self, heads: int, v_dim: int, d: int, capsules: int | None = None):
        super().__init__()
        self.capsules = check_at_least("capsules", heads if capsules is None else capsules, 1)
        width = check_multiple("d", check_at_least("d", d, 1), "capsules", self.capsules) // self.capsules
        shape = check_at_least("heads", heads, 1), self.capsules, check_at_least("v_dim", v_dim, 1), width
        self.weight = nn.Parameter(torch.randn(shape) * v_dim**-0.5)

    def forward(self, y: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T H N W"]:
        return torch.einsum("bhtv,hnvw->bthnw", y, self.weight.to(y.dtype))
