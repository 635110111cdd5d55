"""Ties: choices among numbers, some of which only rounding tells apart.

Keys of equal tokens have equal scores, but each score is rounded in an order of operations that depends on how many
keys a call holds. A choice by `>` alone would read other keys in a step of decoding than in a whole row. So numbers
that are nearer to each other than rounding can tell count as equal, and their places decide.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import precise
from kinformer.core.request import Request

ULPS = 64  # units of rounding: a few for a product, the rest for what its vectors were computed from


Tolerance = Callable[[Int[Tensor, "*n 1"]], Float[Tensor, "*n 1"]]  # the tolerance of the number at each place


@torch.no_grad()
def score_tolerance(request: Request, column: Int[Tensor, "B H T 1"]) -> Float[Tensor, "B H T 1"]:
    """How far apart the scores of equal keys may be computed: 64 ulps of scale |q| |k|, k the key in each column.

    It depends on this one key. A maximum over all keys would let keys that a query may not read change its choices.
    """
    q, k = request.queries.q, request.keys.k
    by_group = column.clamp_min(0).unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # [B G r*T 1]
    size = precise(k.take_along_dim(by_group, 2)).norm(dim=-1, keepdim=True).view(column.shape)
    return tolerance_of(precise(q).norm(dim=-1, keepdim=True) * size * abs(request.scale))


def tolerance_of(size: Tensor) -> Tensor:
    """64 ulps of numbers of this size, in float32 or better."""
    size = precise(size)
    return ULPS * torch.finfo(size.dtype).eps * size


def first(x: Float[Tensor, "*n S"], most: int, tolerance: Tolerance | float) -> Int[Tensor, "*n R"]:
    """The places of the `most` largest numbers of each row, in order; places of -inf mean nothing.

    Numbers within the tolerance of the last number that is taken count as equal to it, and the first places of these
    are taken.
    """
    if not x.shape[-1] or not most:
        return x.new_zeros(*x.shape[:-1], 0, dtype=torch.long)
    value, at = x.topk(most)
    last = value[..., -1:]
    # a number of -inf has no tolerance: its key may not be read, so nothing is asked of it
    near = tolerance(at[..., -1:]).where(last > -torch.inf, 0.0) if callable(tolerance) else tolerance
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # topk takes a sixth of the time of a sort
        doubt = ((x >= last - near).sum(-1, keepdim=True) > most) & (last > -torch.inf)
        if not bool(doubt.any()):
            return at.sort(-1).values
    return places(x, last, near).sort(dim=-1, stable=True, descending=True).indices[..., :most].sort(-1).values


def places(x: Float[Tensor, "*n S"], last: Float[Tensor, "*#n 1"], near: Tensor | float) -> Int[Tensor, "*n S"]:
    """2 for numbers above `last`, 1 for numbers that count as equal to it, 0 for those below."""
    return (x > last + near).to(torch.int8) + (x >= last - near).to(torch.int8)


def equals(x: Float[Tensor, "*n S"], near: Tensor | float) -> Bool[Tensor, "*n S"]:
    """Which numbers count as equal to the largest one of their row."""
    return x >= x.amax(-1, keepdim=True) - near
