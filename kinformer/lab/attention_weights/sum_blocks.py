"""sum_blocks: attention weights of blocks of tokens, from the weights of single tokens."""

import torch
from jaxtyping import Float
from torch import Tensor


def sum_blocks(weights: Float[Tensor, "H Q K"], size: int) -> Float[Tensor, "H q k"]:
    """Return the weight of each block of keys, as a mean over each block of queries.

    A row of the result sums to 1 if the rows of its queries do. The last block may be shorter.

    weights: attention weights.
    size: number of tokens of a block.
    """
    by_key = sum_key_blocks(weights, size)
    return by_key if size == 1 else torch.stack([part.mean(1) for part in by_key.split(size, 1)], 1)


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
