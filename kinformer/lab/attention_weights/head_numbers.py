"""HeadNumbers: distance, entropy and weight on the first tokens, for each head of a layer."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SINKS = 4  # tokens at the start of a text that count as attention sinks


class HeadNumbers(NamedTuple):
    """Numbers about the attention of each head of a layer on one text, exact whatever the size of the map.

    Each number is a mean over the queries that read at least one key. w_ij is the weight of key j for query i.

    distance: sum_j w_ij |i - j|, in tokens.
    entropy: -sum_j w_ij log2 w_ij, in bits: 0 for one key, and n for 2^n keys of equal weight.
    first_token: weight on the first token, over the queries after it; NaN without such a query.
    first_tokens: weight on the first 4 tokens, over the queries after them; NaN without such a query.
    """

    distance: Float[Tensor, " H"]
    entropy: Float[Tensor, " H"]
    first_token: Float[Tensor, " H"]
    first_tokens: Float[Tensor, " H"]


class HeadSums:
    """Sums over queries, which give the numbers of each head.

    Add the weights of all queries, some at a time.

    heads: number of heads.
    """

    def __init__(self, heads: int):
        self.sums = torch.zeros(4, heads, dtype=torch.float64)
        self.counts = torch.zeros(4, heads, dtype=torch.float64)

    def add(self, weights: Float[Tensor, "H R K"], first: int, start: int = 0) -> None:
        """Add the weights of some queries; all other keys have weight 0.

        weights: attention weights.
        first: position of the first of these queries.
        start: position of the first of these keys.
        """
        queries = torch.arange(first, first + weights.shape[1])
        keys = torch.arange(start, start + weights.shape[2])
        reads = weights.amax(-1) > 0  # [H R]
        distances = (queries[:, None] - keys).abs().to(weights.dtype)
        values = (
            (torch.einsum("hrk,rk->hr", weights, distances), reads),
            (torch.special.entr(weights).sum(-1) / math.log(2), reads),
            *((weights[..., : max(n - start, 0)].sum(-1), reads & (queries >= n)) for n in (1, SINKS)),
        )
        for row, (value, counted) in enumerate(values):
            self.sums[row] += (value.double() * counted).sum(-1)
            self.counts[row] += counted.sum(-1)

    def numbers(self) -> HeadNumbers:
        """Return the means over all queries that were added."""
        return HeadNumbers(*(self.sums / self.counts).float())
