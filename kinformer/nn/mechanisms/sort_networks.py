"""Sorting: networks that say which block should stand where, and Sinkhorn's balancing of what they say."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least

__all__ = ["BlockNet", "PairNet", "SortNet"]

LOWEST = -1e30  # the log of a weight that is none; finite, so that nothing becomes NaN beside it


class SortNet(nn.Module, ABC):
    """How much each block wants each block in its place, from what the layer's input says of blocks: logits.

    Each head of keys sorts for itself, by a linear map of its own; what follows it is one for all heads.

    width: numbers that it wants of each block and head, pooled from that map of the block's tokens.
    """

    def __init__(self, width: int):
        super().__init__()
        self.width = check_at_least("width", width, 1)

    @abstractmethod
    def forward(self, pooled: Float[Tensor, "B G N w"], number: Int[Tensor, "B N"]) -> Float[Tensor, "B G N N"]:
        """The logit of block j in the place of block i; `number` says which block of its row each is."""

    def refuse(self, length: int, size: int) -> None:
        """ValueError for rows of more blocks than it knows."""


class BlockNet(SortNet):
    """relu(W_B relu(pooled) + b_B), a logit for each of so many blocks by their numbers: the paper's.

    blocks: the most blocks of a row.

    Errors: ValueError for a longer row. Source: Tay et al., 2020, arXiv:2002.11296, section 3.1.
    """

    def __init__(self, width: int, blocks: int):
        super().__init__(width)
        self.blocks = check_at_least("blocks", blocks, 1)
        self.weight = nn.Parameter(torch.randn(width, blocks) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(blocks))

    def forward(self, pooled: Float[Tensor, "B G N w"], number: Int[Tensor, "B N"]) -> Float[Tensor, "B G N N"]:
        weight, bias = self.weight.to(pooled.dtype), self.bias.to(pooled.dtype)
        logits = F.relu(F.relu(pooled) @ weight + bias)  # [B G N w] [w M]
        at = number.clamp_max(self.blocks - 1)[:, None, None].expand(-1, *logits.shape[1:3], -1)
        return logits.gather(3, at)

    def refuse(self, length: int, size: int) -> None:
        if length > self.blocks * size:
            raise ValueError(
                f"a row of {length} tokens has more than the {self.blocks} blocks of {size} that this BlockNet sorts; "
                "make blocks larger, or use PairNet, which sorts any number"
            )


class PairNet(SortNet):
    """a_i . b_j / sqrt(width), of two halves of what is said of blocks i and j: any number of blocks.

    The sinkhorn-transformer package (P. Wang, 2020) makes logits so by default, of pooled queries and keys.
    """

    def __init__(self, width: int):
        super().__init__(2 * check_at_least("width", width, 1))

    def forward(self, pooled: Float[Tensor, "B G N w"], number: Int[Tensor, "B N"]) -> Float[Tensor, "B G N N"]:
        query, key = pooled.chunk(2, -1)
        return query @ key.mT * query.shape[-1] ** -0.5


def balance_matrix(
    logits: Float[Tensor, "B G N N"], real: Bool[Tensor, "B N"], iterations: int
) -> Float[Tensor, "B G N N"]:
    """Sinkhorn's balancing: exp(logits), rows and then columns divided by their sums, again and again.

    Doubly stochastic in the limit, over the blocks that are there; 0 for the others.
    """
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    for _ in range(iterations):
        for dim in (-1, -2):
            logits = logits.masked_fill(~pairs, LOWEST)
            logits = logits - logits.logsumexp(dim, keepdim=True)
    return logits.masked_fill(~pairs, LOWEST).exp()


def balance_causally(
    logits: Float[Tensor, "B G N N"], real: Bool[Tensor, "B N"], iterations: int
) -> Float[Tensor, "B G N N"]:
    """The same of blocks before the own one alone: of a column the rows up to the own one are summed.

    Rows come last, so that the weights of a row add up to 1 whenever there is an earlier block. No row knows of a later
    one. A doubly stochastic matrix of this form is a single one, which gives each block the one before it.
    """
    count = logits.shape[-1]
    past = torch.ones(count, count, dtype=torch.bool, device=logits.device).tril(-1)
    pairs = past & (real[:, :, None] & real[:, None, :])[:, None]

    def rows(logits: Tensor) -> Tensor:
        logits = logits.masked_fill(~pairs, LOWEST)
        return logits - logits.logsumexp(-1, keepdim=True)

    for _ in range(iterations):
        logits = rows(logits).masked_fill(~pairs, LOWEST)
        logits = logits - logits.logcumsumexp(-2)
    return rows(logits).masked_fill(~pairs, LOWEST).exp()
