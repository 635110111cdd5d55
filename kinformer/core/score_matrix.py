"""The steps of the reference implementation of attention: scores, mask, softmax, weighted values.

Score, bias and pattern meet only here.
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
    """Return the score of every pair, changed by the bias.

    Nothing is masked: scores of pairs that the pattern excludes have no meaning.

    request: the attention call.
    """
    if request.bias is None:
        return request.score(request)
    values = _scores_float32(request) if request.bias.magnifies else request.score(request)
    change = request.bias.bind(request)
    b, h, i, j = (torch.arange(n, device=values.device) for n in values.shape)
    changed = change(values, b[:, None, None, None], h[:, None, None], i[:, None], j)
    # a pair that the score excludes stays excluded; the plain product excludes none
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
    """Return the mask of the pairs that an attention call allows.

    None if it allows every pair. The mask is made once per forward pass, for all layers.

    request: the attention call.
    count: the number of heads, if it differs from the number of query heads (talking heads).
    """
    if request.where is not None:
        return request.where
    queries = request.queries
    heads = range(queries.head, queries.head + (count or queries.q.shape[1]))
    arguments = request.pattern, queries.pos, request.keys.pos, heads, request.rows
    return request.memo.get(lambda: pair_mask(*arguments), "mask", *arguments)


def full_mask(request: Request) -> Bool[Tensor, "B H T S"]:
    """Return the mask of an attention call, expanded to the shape [B H T S].

    request: the attention call.
    """
    shape = (*request.queries.q.shape[:3], request.keys.k.shape[2])
    readable = mask(request)
    return (
        torch.ones(shape, dtype=torch.bool, device=request.keys.k.device)
        if readable is None
        else readable.expand(shape)
    )


def weigh_values(attention: Float[Tensor, "B H T S"], request: Request) -> Float[Tensor, "B H T V"]:
    """Return the weighted sum of the values and of the vectors that the bias adds to them.

    attention: the attention weights of all pairs.
    request: the attention call.
    """
    v = request.keys.v
    attention = attention.to(v.dtype)  # a bias in float32 makes float32 weights from queries in bfloat16
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
    """Return the softmax over keys and its log-sum-exp, which is in float32 or better.

    A query whose scores are all -inf gets weights 0 and log-sum-exp -inf, with gradients 0 instead of NaN.

    logits: scores, -inf at excluded pairs.
    """
    has_key, safe = _safe_logits(logits)
    # softmax is computed separately from lse: it is fused, and an unused lse adds no backward cost
    lse = safe.logsumexp(-1) if logits.shape[-1] else safe.sum(-1)
    return _attention(has_key, safe).to(logits.dtype), torch.where(has_key, lse, -torch.inf)


def attention(logits: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Return the softmax over keys without its log-sum-exp.

    logits: scores, -inf at excluded pairs.
    """
    return _attention(*_safe_logits(logits)).to(logits.dtype)


def _safe_logits(logits: Float[Tensor, "B H T S"]) -> tuple[Bool[Tensor, "B H T"], Float[Tensor, "B H T S"]]:
    """Mark the queries that have a key; return logits in float32 or better, 0 for the other queries."""
    wide = at_least_float32(logits)
    has_key = (wide != -torch.inf).any(-1)  # NaN counts as a score and stays NaN
    return has_key, torch.where(has_key[..., None], wide, 0.0)


def _attention(has_key: Bool[Tensor, "B H T"], safe: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    return torch.where(has_key[..., None], safe.softmax(-1), 0.0)
