"""sum_blocks: attention weights of blocks of tokens, from the weights of single tokens."""

import torch
from jaxtyping import Float
from torch import Tensor


def sum_blocks(
    weights: Float[Tensor, "H Q K"], size: int, queries: Float[Tensor, " Q"] | None = None
) -> Float[Tensor, "H q k"]:
    """Return the weight of each block of keys, as a mean over each block of queries.

    A row of the result sums to 1 if the rows of its queries do. The last block may be shorter.

    weights: attention weights.
    size: number of rows of a block.
    queries: number of queries of each row, if rows are blocks themselves; 1 by default.
    """
    if size == 1:
        return weights
    counts = weights.new_ones(weights.shape[1]) if queries is None else queries.to(weights)
    parts = zip(sum_key_blocks(weights, size).split(size, 1), counts.split(size), strict=True)
    return torch.stack([torch.einsum("hqk,q->hk", part, count / count.sum()) for part, count in parts], 1)


def sum_key_blocks(weights: Float[Tensor, "H Q K"], size: int) -> Float[Tensor, "H Q k"]:
    """Return the weight of each block of keys for each query. The last block may be shorter.

    weights: attention weights.
    size: number of tokens of a block.
    """
    if size == 1:
        return weights
    heads, queries, keys = weights.shape
    whole = keys // size * size
    by_key = weights[..., :whole].reshape(heads, queries, -1, size).sum(-1)
    return by_key if whole == keys else torch.cat([by_key, weights[..., whole:].sum(-1, keepdim=True)], -1)
