"""Cosine: queries and keys compared by their angle."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.heads import number_of_groups
from kinformer.core.request import Request
from kinformer.core.score import Score


class Cosine(Score):
    """`sharp` times the cosine of query and key: scores that no norm can blow up. Source: Henry et al., 2020,
    arXiv:2010.04245."""

    def __init__(self, sharp: float = 4.0):
        super().__init__()
        self.sharp = nn.Parameter(torch.tensor(sharp))

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        q, k = (F.normalize(x, dim=-1) for x in (request.queries.q, request.keys.k))
        each = k.repeat_interleave(number_of_groups(q.shape[1], k.shape[1]), 1)  # [B H S K]
        return self.sharp * (q @ each.mT)


EXAMPLES = (Cosine,)
