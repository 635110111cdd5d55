"""Read: what a set of keys tells a query, and the exact merge of reads of disjoint sets."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinformer.core.bias import Bias, BindFn
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.scores import allowed, scores

BLOCK = 256  # queries that `mass` holds the weights of at a time


class Read(NamedTuple):
    """The weighted mean of the values of some keys, and the log of the sum of their weights.

    Y = 0 and lse = -inf where there was no key.

    `lse` is the log of (an estimate of) sum_j exp(score_j), every dropped constant added back, so that reads of one
    kernel merge.
    """

    y: Float[Tensor, "B H T V"]
    lse: Float[Tensor, "B H T"] | None


def merge(*reads: Read) -> Read:
    """The read of a union of disjoint key sets from the reads of its pieces.

    Exact, in any order, never NaN in values or gradients.
    """
    if not reads:
        raise ValueError("merge got no read; give it at least one")
    for n, read in enumerate(reads):
        if read.lse is None:
            raise ValueError(
                f"read {n} has no lse, so it cannot be merged; ask what made it for one (attend: lse=True)"
            )
    lse = torch.stack([read.lse for read in reads if read.lse is not None])
    highest = lse.detach().amax(0)
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    weight = torch.exp(lse - highest)
    total = weight.sum(0)
    some = total > 0
    safe = torch.where(some, total, 1.0)
    y = sum(w[..., None] * read.y for w, read in zip(weight, reads, strict=True)) / safe[..., None]
    return Read(y, torch.where(some, torch.log(safe) + highest, -torch.inf))


def weights(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    lse: Float[Tensor, "B H T"],
    *,
    at: Int[Tensor, "B R"],
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    bias: Bias | BindFn | None = None,
    scale: float | None = None,
    ctx: Context | None = None,
    sides: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "B H R S"]:
    """Rows `at` of the attention matrix, from the lse of the read that made it. A row whose query had no key is 0."""

    def rows(x: Tensor) -> Tensor:
        pick = at[:, None, :].expand(-1, x.shape[1], -1)
        return x.take_along_dim(pick if x.dim() == 3 else pick[..., None], 2)

    positions = rows(q_pos)
    logits = scores(
        rows(q),
        k,
        q_pos=positions,
        k_pos=k_pos,
        pattern=pattern,
        bias=bias,
        scale=scale,
        ctx=ctx,
        sides={name: rows(side) for name, side in (sides or {}).items()},
    )
    level = rows(lse)[..., None]
    mask = allowed(pattern, q.shape[1], positions, k_pos) & (level > -torch.inf) & (logits > -torch.inf)
    return torch.where(mask, torch.exp(torch.where(mask, logits - level, 0.0)), 0.0)


def mass(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    lse: Float[Tensor, "B H T"],
    *,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    bias: Bias | BindFn | None = None,
    scale: float | None = None,
    ctx: Context | None = None,
    sides: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "B H S"]:
    """How much attention each key got.

    The column sums of the attention matrix, a block of queries at a time, in linear memory.
    """

    def column_sums(at: Tensor) -> Tensor:
        rows = weights(
            q, k, lse, at=at, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=bias, scale=scale, ctx=ctx, sides=sides
        )
        return rows.sum(2)

    total = q.new_zeros(q.shape[0], q.shape[1], k.shape[2])
    for at in _blocks(q):
        total = total + (
            checkpoint(column_sums, at, use_reentrant=False) if torch.is_grad_enabled() else column_sums(at)
        )
    return total


def _blocks(q: Tensor) -> Iterator[Tensor]:
    for block in torch.arange(q.shape[2], device=q.device).split(BLOCK):
        yield block.expand(q.shape[0], -1)
