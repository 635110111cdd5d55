"""Ties: the choice of the largest numbers, if some differ only by rounding.

Keys of equal tokens have equal scores, but the rounding of a score depends on the number of keys in a call. A plain
comparison with `>` would read different keys in a decoding step than in a whole row. So numbers within rounding error
count as equal, and their order in the row decides.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.request import Request

ULPS = 64  # units of rounding: a few for the product, the rest for the rounding of its two vectors


Tolerance = Callable[[Int[Tensor, "*n 1"]], Float[Tensor, "*n 1"]]  # the tolerance of the number at each place


@torch.no_grad()
def score_tolerance(request: Request, column: Int[Tensor, "B H T 1"]) -> Float[Tensor, "B H T 1"]:
    """Return a bound on the difference between the scores of equal keys that rounding causes.

    The bound is 64 ulps (units in the last place) of scale |q| |k|, where k is the key at `column`. It depends only on
    this key. A maximum over all keys would let keys that a query may not read change its choices.

    request: the attention call.
    column: the index of one key for each query.
    """
    q, k = request.queries.q, request.keys.k
    by_group = column.clamp_min(0).unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # [B G r*T 1]
    size = at_least_float32(k.take_along_dim(by_group, 2)).norm(dim=-1, keepdim=True).view(column.shape)
    return tolerance_of(at_least_float32(q).norm(dim=-1, keepdim=True) * size * abs(request.scale))


def tolerance_of(size: Tensor) -> Tensor:
    """Return 64 ulps (units in the last place) of numbers of a given size, in float32 or better.

    size: the numbers.
    """
    size = at_least_float32(size)
    return ULPS * torch.finfo(size.dtype).eps * size


def top_indices(x: Float[Tensor, "*n S"], k: int, tolerance: Tolerance | float) -> Int[Tensor, "*n R"]:
    """Return ascending indices of the `k` largest numbers of each row; ignore indices of numbers -inf.

    Numbers within the tolerance of the smallest chosen number count as equal to it; the first of these are chosen.

    x: the numbers.
    k: the number of indices.
    tolerance: a number, or a function from indices to the tolerance of each number.
    """
    if not x.shape[-1] or not k:
        return x.new_zeros(*x.shape[:-1], 0, dtype=torch.long)
    value, at = x.topk(k)
    last = value[..., -1:]
    # -inf gets tolerance 0, because its key may not be read and must not be inspected
    near = tolerance(at[..., -1:]).where(last > -torch.inf, 0.0) if callable(tolerance) else tolerance
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # topk takes a sixth of the time of a sort
        doubt = ((x >= last - near).sum(-1, keepdim=True) > k) & (last > -torch.inf)
        if not bool(doubt.any()):
            return at.sort(-1).values
    return compare_to_last(x, last, near).sort(dim=-1, stable=True, descending=True).indices[..., :k].sort(-1).values


def compare_to_last(
    x: Float[Tensor, "*n S"], last: Float[Tensor, "*#n 1"], near: Tensor | float
) -> Int[Tensor, "*n S"]:
    """Compare numbers with `last`: 2 above it, 1 within `near` of it, 0 below.

    x: the numbers.
    last: one number for each row.
    near: the tolerance.
    """
    return (x > last + near).to(torch.int8) + (x >= last - near).to(torch.int8)


def equal_to_largest(x: Float[Tensor, "*n S"], near: Tensor | float) -> Bool[Tensor, "*n S"]:
    """Return True for numbers within `near` of the largest number of their row.

    x: the numbers.
    near: the tolerance.
    """
    return x >= x.amax(-1, keepdim=True) - near
