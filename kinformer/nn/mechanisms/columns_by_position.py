"""Columns found again by their positions, in whatever order they stand."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def find_columns(sources: Int[Tensor, "B M"], targets: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """The column of each target among the sources; M where there is none, and for targets below 0."""
    count = sources.shape[1]
    ordered, order = sources.sort(1)
    at = torch.searchsorted(ordered, targets.contiguous())
    # one more column, for what lies behind the last
    is_source = F.pad(ordered, (0, 1), value=-1).gather(1, at) == targets
    return torch.where(is_source & (targets >= 0), F.pad(order, (0, 1), value=count).gather(1, at), count)


def take_at(x: Float[Tensor, "B H T S"], at: Int[Tensor, "B N"], dim: int) -> Float[Tensor, "B H _ _"]:
    """Rows (dim 2) or columns (dim 3) of x as `find_columns` found them, zeros where there is none."""
    padded = F.pad(x, (0, 1) if dim == 3 else (0, 0, 0, 1))
    shape = list(x.shape)
    shape[dim] = at.shape[1]
    return padded.gather(dim, (at[:, None, None] if dim == 3 else at[:, None, :, None]).expand(shape))
