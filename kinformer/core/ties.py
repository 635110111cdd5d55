"""Ties: choices among numbers that may differ by rounding alone.

Keys of equal tokens have equal scores, but the rounding of a score depends on the number of keys in a call. A choice by
`>` alone would read different keys in a decoding step than in a whole row. So numbers within rounding error count as
equal, and their order in the row decides.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import precise
from kinformer.core.request import Request

ULPS = 64  # units of rounding: a few for the product, the rest for the inputs of its vectors


@torch.no_grad()
def noise(request: Request) -> Float[Tensor, "B H T 1"]:
    """Bound on the rounding difference of a query's scores with equal keys: 64 ulps of scale |q| max |k|."""
    q, k = precise(request.queries.q), precise(request.keys.k)
    real = (request.keys.pos >= 0).any(1, keepdim=True)
    longest = torch.where(real, k.norm(dim=-1), 0.0)  # [B G S]
    longest = longest.amax(-1) if longest.shape[-1] else longest.sum(-1)
    by_head = longest.repeat_interleave(q.shape[1] // k.shape[1], 1)[:, :, None, None]
    return noise_of(q.norm(dim=-1, keepdim=True) * by_head * abs(request.scale))


def noise_of(size: Tensor) -> Tensor:
    """64 ulps of numbers of this size, in float32 or better."""
    size = precise(size)
    return ULPS * torch.finfo(size.dtype).eps * size


def first(x: Float[Tensor, "*n S"], most: int, near: Float[Tensor, "*#n 1"] | float) -> Int[Tensor, "*n R"]:
    """Ascending indices of the `most` largest numbers of each row; ignore indices of -inf.

    Numbers within `near` of the smallest chosen number count as equal to it; the first of these are chosen.
    """
    if not x.shape[-1] or not most:
        return x.new_zeros(*x.shape[:-1], 0, dtype=torch.long)
    value, at = x.topk(most)
    last = value[..., -1:]
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # topk takes a sixth of the time of a sort
        doubt = ((x >= last - near).sum(-1, keepdim=True) > most) & (last > -torch.inf)
        if not bool(doubt.any()):
            return at.sort(-1).values
    return places(x, last, near).sort(dim=-1, stable=True, descending=True).indices[..., :most].sort(-1).values


def places(x: Float[Tensor, "*n S"], last: Float[Tensor, "*#n 1"], near: Tensor | float) -> Int[Tensor, "*n S"]:
    """Compare numbers with `last`: 2 above it, 1 within `near` of it, 0 below."""
    return (x > last + near).to(torch.int8) + (x >= last - near).to(torch.int8)


def equals(x: Float[Tensor, "*n S"], near: Tensor | float) -> Bool[Tensor, "*n S"]:
    """True for numbers within `near` of the largest number of their row."""
    return x >= x.amax(-1, keepdim=True) - near
