"""AttentionOutput: what a set of keys tells a query, and the exact merge of reads of disjoint sets."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinformer.core.autocast import at_least_float32, disable_autocast, to_autocast
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores

BLOCK = 256  # queries whose weights are held at a time


class AttentionOutput(NamedTuple):
    """The weighted mean of the values of some keys, and the log of the sum of their weights.

    Y = 0 and lse = -inf where there was no key.

    `lse` is the log of (an estimate of) sum_j exp(score_j), every dropped constant added back, so that reads of one
    kernel merge; in float32 or better.
    """

    y: Float[Tensor, "B H T V"]
    lse: Float[Tensor, "B H T"] | None


def merge(*reads: AttentionOutput) -> AttentionOutput:
    """The read of a union of disjoint key sets from the reads of its pieces.

    Exact, in any order, never NaN in values or gradients; computed in float32 or better.

    Errors: ValueError for no read or for one without lse, TypeError for anything else than reads.
    """
    if not reads:
        raise ValueError("merge got no read; give it at least one")
    for n, read in enumerate(reads):
        if not isinstance(read, AttentionOutput):
            raise TypeError(
                f"merge joins reads: got a {type(read).__name__}, expected a AttentionOutput. Write merge(a, b)"
            )
        if read.lse is None:
            raise ValueError(
                f"read {n} has no lse, so it cannot be merged; ask what made it for one (attend: lse=True)"
            )
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
    """Rows `at` of the attention matrix, from the lse of the read that made it. A row whose query had no key is 0."""
    rows = request.piece(at, None)
    level = lse.take_along_dim(at[:, None], 2)[..., None]
    logits = _scores_float32(rows)
    mask = full_mask(rows) & (level > -torch.inf) & (logits > -torch.inf)
    return torch.where(mask, torch.exp(torch.where(mask, logits - level, 0.0)), 0.0)


def _scores_float32(request: Request) -> Float[Tensor, "B H T S"]:
    """Scores in float32 or better, of vectors as products take them: a kernel's lse is of scores never rounded."""
    q, k = request.queries, request.keys
    wide = [at_least_float32(to_autocast(x)) for x in (q.q, k.k)]
    with disable_autocast(q.q):
        return scores(request.replace(queries=q._replace(q=wide[0]), keys=k._replace(k=wide[1])))


def received_attention(request: Request, lse: Float[Tensor, "B H T"]) -> Float[Tensor, "B H S"]:
    """How much attention each key got.

    The column sums of the attention matrix, a block of queries at a time, in linear memory.
    """
    batch, heads = request.queries.q.shape[:2]
    total = lse.new_zeros(batch, heads, request.keys.k.shape[2])
    for sums in map_query_blocks(request, lambda at: weights(request, lse, at).sum(2)):
        total = total + sums
    return total


def map_query_blocks(request: Request, function: Callable[[Int[Tensor, "B R"]], Tensor]) -> Iterator[Tensor]:
    """What is made of each block of queries, given their places, one after the other.

    Where gradients are on it is made again in the backward, so that no more than one block's weights are ever held.
    """
    q = request.queries.q
    for block in torch.arange(q.shape[2], device=q.device).split(BLOCK):
        at = block.expand(q.shape[0], -1)
        yield checkpoint(function, at, use_reentrant=False) if torch.is_grad_enabled() else function(at)
