"""scores, mask and allowed: the logits of attention before the mask, and the mask.

The one place where score, bias and pattern meet on the reference path.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.pattern import pairs
from kinformer.core.request import Request
from kinformer.scores.product import Product


def scores(request: Request) -> Float[Tensor, "B H T S"]:
    """The score of every pair, changed by the bias. Nothing is masked: outside the pattern they mean nothing."""
    found = request.score(request)
    if request.bias is None:
        return found
    change = request.bias.bind(request)
    b, h, i, j = (torch.arange(n, device=found.device) for n in found.shape)
    changed = change(found, b[:, None, None, None], h[:, None, None], i[:, None], j)
    # what a score shut out stays out; the plain product shuts out nothing
    return changed if type(request.score) is Product else changed.masked_fill(found == -torch.inf, -torch.inf)


def mask(request: Request, count: int | None = None) -> Bool[Tensor, "#B #H T S"] | None:
    """Which pairs a request may read; None where it may read every one. Made once per forward, for all layers.

    `count` is the number of heads, where there are more or fewer than the queries have (talking heads).
    """
    queries, keys = request.queries, request.keys
    heads = range(queries.head, queries.head + (count or queries.q.shape[1]))
    key = ("mask", request.pattern, queries.pos, keys.pos, heads, request.rows)
    return request.memo.get(lambda: pairs(request.pattern, queries.pos, keys.pos, heads, request.rows), *key)


def allowed(request: Request) -> Bool[Tensor, "B H T S"]:
    """The same as a mask of full shape."""
    batch, heads, length, _ = request.queries.q.shape
    shape = (batch, heads, length, request.keys.k.shape[2])
    found = mask(request)
    return torch.ones(shape, dtype=torch.bool, device=request.keys.k.device) if found is None else found.expand(shape)
