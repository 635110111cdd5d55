"""The reference executor: dense attention that defines what every other executor must compute."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import number_of_groups
from kinformer.core.read import Read
from kinformer.core.request import Request
from kinformer.core.scores import mask, scores

SECONDS = 6e-11  # per score and number of a head's width: about six times what fused attention takes


def cost(request: Request) -> float:
    """It serves every request."""
    return request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> Read:
    """softmax over the allowed scores, times the values. Its `Read` says 0 and -inf where a query may read nothing."""
    logits, where = scores(request), mask(request)
    attention, lse = softmax(logits if where is None else logits.masked_fill(~where, -torch.inf))
    return Read(weighted(F.dropout(attention, request.dropout), request), lse)


def weighted(attention: Float[Tensor, "B H T S"], request: Request) -> Float[Tensor, "B H T V"]:
    """The values, and what the bias adds to each pair's value, times the attention."""
    v = request.keys.v
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
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    some = (wide > -torch.inf).any(-1)
    safe = torch.where(some[..., None], wide, 0.0)
    # softmax apart from lse: fused, and where nobody uses the lse its backward costs nothing
    attention = torch.where(some[..., None], safe.softmax(-1), 0.0).to(logits.dtype)
    lse = safe.logsumexp(-1) if logits.shape[-1] else safe.sum(-1)
    return attention, torch.where(some, lse, -torch.inf)
