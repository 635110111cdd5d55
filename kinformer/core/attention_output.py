"""AttentionOutput: the result of one attention call, and the exact merge of calls over disjoint keys."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinformer.core.autocast import at_least_float32, disable_autocast, to_autocast
from kinformer.core.keyword_hints import hint_value
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores

BLOCK = 256  # number of queries in a block: memory holds the weights of one block


class AttentionOutput(NamedTuple):
    """The result of attention over a set of keys: the weighted mean of their values, and the log-sum-exp.

    A query without a key has y = 0 and lse = -inf.

    y: the weighted mean of the values.
    lse: the log of (an estimate of) sum_j exp(score_j), in float32 or better; None if it was not requested. Constants
        that a kernel leaves out of its scores are added back, so that outputs over other keys can be merged.
    """

    y: Float[Tensor, "B H T V"]
    lse: Float[Tensor, "B H T"] | None


hint_value(AttentionOutput, "attend returns AttentionOutput", "attend(...).y")


def merge(*reads: AttentionOutput) -> AttentionOutput:
    """Merge attention outputs over disjoint sets of keys into the output over all these keys.

    Exact, in any order, and never NaN in values or gradients. Computed in float32 or better.

    reads: the outputs to merge, of the same queries.

    Errors: ValueError if there is no output or one has no lse (log-sum-exp); TypeError if an argument is not an
    AttentionOutput.
    """
    if not reads:
        raise ValueError("merge failed: got no attention output, expected at least one")
    for n, read in enumerate(reads):
        if not isinstance(read, AttentionOutput):
            raise TypeError(
                f"merge failed: argument {n} is of type {type(read).__name__}, expected AttentionOutput. "
                "Call merge(a, b)"
            )
        if read.lse is None:
            raise ValueError(f"merge failed: argument {n} has no lse. Compute it with its lse (attend: lse=True)")
    lse = torch.stack([at_least_float32(read.lse) for read in reads if read.lse is not None])
    highest = lse.detach().amax(0)
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    weight = torch.exp(lse - highest)  # [n B H T]
    total = weight.sum(0)
    has_key = total > 0
    safe = torch.where(has_key, total, 1.0)
    y = sum(w[..., None] * read.y for w, read in zip(weight / safe, reads, strict=True))
    return AttentionOutput(y.to(reads[0].y.dtype), torch.where(has_key, torch.log(safe) + highest, -torch.inf))


def weights(request: Request, lse: Float[Tensor, "B H T"], at: Int[Tensor, "B R"]) -> Float[Tensor, "B H R S"]:
    """Return the attention weights of the queries `at`, computed again from the log-sum-exp of a call.

    The weights of a query without a key are 0.

    request: the attention call.
    lse: the log-sum-exp that the call returned, [B H T].
    at: the query indices of each row, [B R].
    """
    rows = request.piece(at, None)
    level = lse.take_along_dim(at[:, None], 2)[..., None]
    logits = _scores_float32(rows)
    mask = full_mask(rows) & (level > -torch.inf) & (logits > -torch.inf)
    return torch.where(mask, torch.exp(torch.where(mask, logits - level, 0.0)), 0.0)


def _scores_float32(request: Request) -> Float[Tensor, "B H T S"]:
    """Compute the scores in float32 or better from inputs in autocast's dtype, as in a kernel's lse."""
    q, k = request.queries, request.keys
    wide = [at_least_float32(to_autocast(x)) for x in (q.q, k.k)]
    with disable_autocast(q.q):
        return scores(request.replace(queries=q._replace(q=wide[0]), keys=k._replace(k=wide[1])))


def received_attention(request: Request, lse: Float[Tensor, "B H T"]) -> Float[Tensor, "B H S"]:
    """Return the attention that each key receives: its attention weights, summed over all queries.

    Memory is linear, because one block of queries is computed at a time.

    request: the attention call.
    lse: the log-sum-exp that the call returned, [B H T].
    """
    batch, heads = request.queries.q.shape[:2]
    total = lse.new_zeros(batch, heads, request.keys.k.shape[2])
    for sums in map_query_blocks(request, lambda at: weights(request, lse, at).sum(2)):
        total = total + sums
    return total


def map_query_blocks(request: Request, function: Callable[[Int[Tensor, "B R"]], Tensor]) -> Iterator[Tensor]:
    """Yield `function(indices)` for each block of queries of an attention call.

    If gradients are enabled, each result is recomputed in the backward pass, so that memory holds the weights of one
    block only.

    request: the attention call.
    function: a map from the query indices of a block [B R] to a tensor.
    """
    q = request.queries.q
    for block in torch.arange(q.shape[2], device=q.device).split(BLOCK):
        at = block.expand(q.shape[0], -1)
        yield checkpoint(function, at, use_reentrant=False) if torch.is_grad_enabled() else function(at)
