"""scores.

The logits of attention before the mask, the one place where query, key and bias meet on the reference path.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.bias import Bias, BindFn, ScoreFn
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern


def scores(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    *,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    bias: Bias | BindFn | None = None,
    scale: float | None = None,
    rows: Int[Tensor, " B"] | None = None,
    ctx: Context | None = None,
    sides: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "B H T S"]:
    """scale * q.k for every pair, changed by the bias.

    `scale` is 1/sqrt(K) unless given. Head h reads key head h // (H / G).

    The pattern only tells the bias how far its tables must reach: nothing is masked here, and scores of pairs outside
    it mean nothing.
    """
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups:
        raise ValueError(
            f"{heads} query heads cannot share {groups} key heads evenly; make the first a multiple of the second"
        )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    product = torch.einsum("bhtk,bhsk->bhts", q, shared(k, heads // groups)) * scale
    if bias is None:
        return product
    bind = bias.bind if isinstance(bias, Bias) else bias
    score: ScoreFn = bind(q, k, q_pos, k_pos, scale=scale, reach=pattern.reach(), ctx=ctx, sides=sides or {})
    batch, _, t, s = product.shape
    at = [torch.arange(n, device=q.device) for n in (batch, heads, t, s)]
    return score(product, at[0][:, None, None, None], at[1][:, None, None], at[2][:, None], at[3])


def shared(x: Float[Tensor, "B G S N"], times: int) -> Float[Tensor, "B H S N"]:
    """Keys or values as the query heads see them: each head `times` times, one after the other."""
    return x if times == 1 else x.repeat_interleave(times, 1)


def allowed(
    pattern: Pattern,
    heads: int,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    rows: Int[Tensor, " B"] | None = None,
) -> Bool[Tensor, "B H T S"]:
    """The pattern as a mask over the given positions; padding (-1) neither reads nor is read.

    `rows`: the batch row that a pattern sees.
    """
    batch = q_pos.shape[0]
    b = torch.arange(batch, device=q_pos.device) if rows is None else rows
    h = torch.arange(heads, device=q_pos.device)
    q, k = q_pos[..., :, None], k_pos[..., None, :]
    real = (q >= 0) & (k >= 0)
    inside = pattern(b[:, None, None, None], h[:, None, None], q.clamp_min(0), k.clamp_min(0))
    return (real & inside).expand(batch, heads, q_pos.shape[-1], k_pos.shape[-1])
