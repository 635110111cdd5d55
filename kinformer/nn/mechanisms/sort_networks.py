"""Sorting networks for blocks, and Sinkhorn balancing of their logits."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least
from kinformer.core.keyword_hints import KeywordHints

__all__ = ["BlockNet", "PairNet", "SortNet"]

LOWEST = -1e30  # log of a weight of zero; finite, so that sums give no NaN


class SortNet(nn.Module, KeywordHints, ABC):
    """Base class of `Sinkhorn`'s sorting networks, which give a logit to each block in each place.

    Each key head sorts separately with its own linear map of the layer's input. The network after this map is the same
    for all heads. A subclass defines `forward`.

    width: width of the pooled input for each block and head.
    """

    def __init__(self, width: int):
        super().__init__()
        self.width = check_at_least("width", width, 1)

    @abstractmethod
    def forward(self, pooled: Float[Tensor, "B G N w"], number: Int[Tensor, "B N"]) -> Float[Tensor, "B G N N"]:
        """Return the logit of each block j in the place of each block i, [B, G, N, N].

        pooled: pooled vector of each block, [B, G, N, w].
        number: number of each block in its row, [B, N].
        """

    def refuse(self, length: int, size: int) -> None:
        """Raise ValueError if `length` tokens make more blocks of `size` tokens than the network can sort."""


class BlockNet(SortNet):
    """Sorting network of the paper, which gives a logit for each of a fixed number of blocks.

    R = relu(W_B relu(pooled) + b_B)

    width: width of the pooled input for each block and head.
    blocks: maximum number of blocks of a row.

    Errors: ValueError for a longer row.

    Source: Tay et al., 2020, arXiv:2002.11296, section 3.1.
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
                f"a row of {length} tokens has more than the {self.blocks} blocks of {size} that this BlockNet "
                "sorts. Use larger blocks, or PairNet, which sorts any number of blocks"
            )


class PairNet(SortNet):
    """Sorting network for any number of blocks, which compares them in pairs.

    R_ij = a_i . b_j / sqrt(width)

    The vectors a and b are the two halves of the pooled input. The sinkhorn-transformer package (P. Wang, 2020)
    computes its logits in this way by default, from pooled queries and keys.

    width: width of a and of b.
    """

    def __init__(self, width: int):
        super().__init__(2 * check_at_least("width", width, 1))

    def forward(self, pooled: Float[Tensor, "B G N w"], number: Int[Tensor, "B N"]) -> Float[Tensor, "B G N N"]:
        query, key = pooled.chunk(2, -1)
        return query @ key.mT * query.shape[-1] ** -0.5


def balance_matrix(
    logits: Float[Tensor, "B G N N"], real: Bool[Tensor, "B N"], iterations: int
) -> Float[Tensor, "B G N N"]:
    """Apply Sinkhorn balancing to exp(logits): divide rows and then columns by their sums, repeatedly.

    In the limit the result is doubly stochastic over the real blocks. Other entries are 0.

    logits: logits of blocks in places, [B, G, N, N].
    real: False for blocks without tokens, [B, N].
    iterations: number of balancing steps.
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
    """Apply Sinkhorn balancing to earlier blocks only: for each row, columns are summed down to it.

    Rows are divided last, so the weights of a row sum to 1 if there is an earlier block. No row depends on a later
    one. Only one doubly stochastic matrix has this form: it gives each block the block before it.

    logits, real, iterations: as in `balance_matrix`.
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
