"""One call of attention over tiles in plain operations, for biases that the fused kernel cannot add.

These are biases by distance: the kernel computes no gradient of its mask and cannot add vectors to the values.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.attend.distance_bands import by_head, skew, spread


def forward(
    q: Float[Tensor, "n H q D"],
    k: Float[Tensor, "n G k D"],
    v: Float[Tensor, "n G k D"],
    mask: Float[Tensor, "#n #H q k"],
    scale: float,
    values: Float[Tensor, "#H W D"],
) -> tuple[Float[Tensor, "n H q D"], Float[Tensor, "n H q"]]:
    """Return y and log-sum-exp of one call of attention in which the bias adds vectors to the values.

    q, k, v: queries, keys and values of n tiles.
    mask: numbers to add to the scores, -inf at excluded pairs.
    scale: factor of the product q.k.
    values: vectors added to the values at each of the W distances of a tile, the furthest first.
    """
    groups, wide = k.shape[1], torch.promote_types(q.dtype, torch.float32)
    q, k, v, values = (x.to(wide) for x in (q, k, v, values))
    scores = _of_heads(_by_group(q * scale, groups) @ k.mT, q.shape[1]).add_(mask)
    lse = scores.logsumexp(-1)
    p = scores.sub_(torch.where(lse == -torch.inf, 0.0, lse)[..., None]).exp_()
    return _of_heads(_by_group(p, groups) @ v, q.shape[1]).add_(_by_tile(spread(p) @ values, len(q))), lse


def backward(
    gy: Float[Tensor, "n H q D"],
    q: Float[Tensor, "n H q D"],
    k: Float[Tensor, "n G k D"],
    v: Float[Tensor, "n G k D"],
    y: Float[Tensor, "n H q D"],
    lse: Float[Tensor, "n H q 1"],
    mask: Float[Tensor, "#n #H q k"],
    scale: float,
    values: Float[Tensor, "#H W D"] | None,
) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "n H q k"], Float[Tensor, "n H q k"]]:
    """Return the gradients of q, k, v and the scores of one call of attention, and the attention weights.

    gy: gradient of y.
    q, k, v: queries, keys and values of n tiles.
    y, lse: output and log-sum-exp of the whole attention, not of this call.
    mask: numbers that were added to the scores, -inf at excluded pairs.
    scale: factor of the product q.k.
    values: vectors added to the values at each distance of a tile, or None.
    """
    (heads, groups), wide = (q.shape[1], k.shape[1]), lse.dtype
    gy, q, k, v, y = (x.to(wide) for x in (gy, q, k, v, y))
    q = q * scale
    p = _of_heads(_by_group(q, groups) @ k.mT, heads).add_(mask).sub_(lse).exp_()
    ds = _of_heads(_by_group(gy, groups) @ v.mT, heads)
    if values is not None:
        ds += skew(by_head(gy) @ values.to(wide).mT, gy.shape[2], k.shape[2])
    ds.sub_((gy * y).sum(-1, keepdim=True)).mul_(p)
    dk, dv = (_by_group(x, groups).mT @ _by_group(of, groups) for x, of in ((ds, q), (p, gy)))
    return _of_heads(_by_group(ds, groups) @ k, heads).mul_(scale), dk, dv, ds, p


def _by_tile(x: Float[Tensor, "H N D"], tiles: int) -> Float[Tensor, "n H q D"]:
    return x.unflatten(1, (tiles, -1)).transpose(0, 1)


def _by_group(x: Float[Tensor, "n H q D"], groups: int) -> Float[Tensor, "n G N D"]:
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).flatten(2, 3)


def _of_heads(x: Float[Tensor, "n G N D"], heads: int) -> Float[Tensor, "n H q D"]:
    return x if x.shape[1] == heads else x.unflatten(2, (heads // x.shape[1], -1)).flatten(1, 2)
