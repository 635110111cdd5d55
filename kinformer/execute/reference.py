"""The reference executor: dense attention that defines what every other executor must compute."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.bias import Bias, BindFn
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.read import Read
from kinformer.core.scores import allowed, scores, shared


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    *,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    bias: Bias | BindFn | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    rows: Int[Tensor, " B"] | None = None,
    ctx: Context | None = None,
    sides: Mapping[str, Tensor] | None = None,
) -> Read:
    """softmax over the allowed scores, times the values. Its `Read` says 0 and -inf where a query may read nothing."""
    logits = scores(
        q, k, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=bias, scale=scale, rows=rows, ctx=ctx, sides=sides
    )
    logits = logits.masked_fill(~allowed(pattern, q.shape[1], q_pos, k_pos, rows), -torch.inf)
    attention, lse = softmax(logits)
    y = weighted(F.dropout(attention, dropout), v, bias, q_pos, k_pos)
    return Read(y, lse)


def weighted(
    attention: Float[Tensor, "B H T S"],
    v: Float[Tensor, "B G S V"],
    bias: Bias | BindFn | None,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
) -> Float[Tensor, "B H T V"]:
    """The values, and what the bias adds to each pair's value, times the attention."""
    y = attention @ shared(v, attention.shape[1] // v.shape[1])
    added = bias.values(q_pos, k_pos) if isinstance(bias, Bias) else None
    if added is None:
        return y
    table, row = added
    by_row = attention.new_zeros(*attention.shape[:3], table.shape[0]).scatter_add(
        -1, row.expand_as(attention), attention
    )
    return y + by_row @ table


def softmax(logits: Float[Tensor, "B H T S"]) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T"]]:
    """Softmax over keys, and its log-sum-exp.

    A row of -inf gives zeros and -inf, with zero gradients instead of NaN.
    """
    some = (logits > -torch.inf).any(-1)
    safe = torch.where(some[..., None], logits, 0.0)
    attention = torch.where(some[..., None], safe.softmax(-1), 0.0)
    return attention, torch.where(some, safe.logsumexp(-1) if logits.shape[-1] else safe.sum(-1), -torch.inf)
