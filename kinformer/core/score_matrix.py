"""scores, mask, softmax and weighted: what attention is made of.

The one place where score, bias and pattern meet on the reference path.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.heads import number_of_groups
from kinformer.core.pattern import pair_mask
from kinformer.core.request import Request
from kinformer.core.scores.product import Product


def scores(request: Request) -> Float[Tensor, "B H T S"]:
    """The score of every pair, changed by the bias. Nothing is masked: outside the pattern they mean nothing."""
    if request.bias is None:
        return request.score(request)
    values = _scores_float32(request) if request.bias.magnifies else request.score(request)
    change = request.bias.bind(request)
    b, h, i, j = (torch.arange(n, device=values.device) for n in values.shape)
    changed = change(values, b[:, None, None, None], h[:, None, None], i[:, None], j)
    # what a score shut out stays out; the plain product shuts out nothing
    return changed if type(request.score) is Product else changed.masked_fill(values == -torch.inf, -torch.inf)


def _scores_float32(request: Request) -> Float[Tensor, "B H T S"]:
    """Compute the scores in float32 or better, also under autocast."""
    queries, keys = request.queries, request.keys
    wide = request.replace(
        queries=queries._replace(q=at_least_float32(queries.q)), keys=keys._replace(k=at_least_float32(keys.k))
    )
    with disable_autocast(queries.q):
        return request.score(wide)


def mask(request: Request, count: int | None = None) -> Bool[Tensor, "#B #H T S"] | None:
    """Which pairs a request may read; None where it may read every one. Made once per forward, for all layers.

    `count` is the number of heads, where there are more or fewer than the queries have (talking heads).
    """
    if request.where is not None:
        return request.where
    queries = request.queries
    heads = range(queries.head, queries.head + (count or queries.q.shape[1]))
    arguments = request.pattern, queries.pos, request.keys.pos, heads, request.rows
    return request.memo.get(lambda: pair_mask(*arguments), "mask", *arguments)


def full_mask(request: Request) -> Bool[Tensor, "B H T S"]:
    """The same as a mask of full shape."""
    shape = (*request.queries.q.shape[:3], request.keys.k.shape[2])
    readable = mask(request)
    return (
        torch.ones(shape, dtype=torch.bool, device=request.keys.k.device)
        if readable is None
        else readable.expand(shape)
    )


def weigh_values(attention: Float[Tensor, "B H T S"], request: Request) -> Float[Tensor, "B H T V"]:
    """The values, and what the bias adds to each pair's value, times the attention."""
    v = request.keys.v
    attention = attention.to(v.dtype)  # a bias in float32 beside queries in bfloat16 made wider ones
    number_of_groups(attention.shape[1], v.shape[1], "value heads")
    by_group = attention.unflatten(1, (v.shape[1], -1)).flatten(2, 3)  # [B U R*T S]
    y = (by_group @ v).view(*attention.shape[:3], v.shape[3])
    added = None if request.bias is None else request.bias.values(request.queries.pos, request.keys.pos)
    if added is None:
        return y
    table, row = added  # [N V], [B #H T S]
    by_row = attention.new_zeros(*attention.shape[:3], table.shape[0]).scatter_add(
        -1, row.expand_as(attention), attention
    )
    return y + by_row @ table.to(by_row.dtype)


def softmax(logits: Float[Tensor, "B H T S"]) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T"]]:
    """Softmax over keys, and its log-sum-exp in float32 or better.

    A row of -inf gives zeros and -inf, with zero gradients instead of NaN.
    """
    has_key, safe = _safe_logits(logits)
    # softmax apart from lse: fused, and where nobody uses the lse its backward costs nothing
    lse = safe.logsumexp(-1) if logits.shape[-1] else safe.sum(-1)
    return _attention(has_key, safe).to(logits.dtype), torch.where(has_key, lse, -torch.inf)


def attention(logits: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """The same softmax, where nobody wants the lse."""
    return _attention(*_safe_logits(logits)).to(logits.dtype)


def _safe_logits(logits: Float[Tensor, "B H T S"]) -> tuple[Bool[Tensor, "B H T"], Float[Tensor, "B H T S"]]:
    """Which queries have a key, and logits in float32 or better, 0 for the other queries."""
    wide = at_least_float32(logits)
    has_key = (wide != -torch.inf).any(-1)  # NaN is a score, and stays one
    return has_key, torch.where(has_key[..., None], wide, 0.0)


def _attention(has_key: Bool[Tensor, "B H T"], safe: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    return torch.where(has_key[..., None], safe.softmax(-1), 0.0)
