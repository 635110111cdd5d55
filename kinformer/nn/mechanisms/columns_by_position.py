"""Lookup of the columns (places of tokens in a tensor) that hold given positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def find_columns(sources: Int[Tensor, "B M"], targets: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """Return the column (index into `sources`) that holds each target position.

    sources: positions of the columns to search, [B, M], in any order.
    targets: positions to look up, [B, N].

    A target that is missing or negative gets M.
    """
    count = sources.shape[1]
    ordered, order = sources.sort(1)
    at = torch.searchsorted(ordered, targets.contiguous())
    # searchsorted returns M for targets above the last source
    is_source = F.pad(ordered, (0, 1), value=-1).gather(1, at) == targets
    return torch.where(is_source & (targets >= 0), F.pad(order, (0, 1), value=count).gather(1, at), count)


def take_at(x: Float[Tensor, "B H T S"], at: Int[Tensor, "B N"], dim: int) -> Float[Tensor, "B H _ _"]:
    """Select query rows or key columns of x by indices from `find_columns`; a missing one gives zeros.

    x: values of pairs, [B, H, T, S].
    at: indices from `find_columns`, [B, N]; the size of the dimension for a missing token.
    dim: 2 to select rows (queries), 3 to select columns (keys).
    """
    padded = F.pad(x, (0, 1) if dim == 3 else (0, 0, 0, 1))
    shape = list(x.shape)
    shape[dim] = at.shape[1]
    return padded.gather(dim, (at[:, None, None] if dim == 3 else at[:, None, :, None]).expand(shape))
