"""loop: one query after the other, as one would write it by hand."""

import torch
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Refusal, Request
from kinformer.core.score_matrix import full_mask, scores

SECONDS = 1e-3  # per query


def cost(request: Request) -> float | Refusal:
    """It takes the plain case, and not many queries."""
    if not request.pairs:
        return Refusal("it wants at least one pair")
    if request.bias is not None or request.dropout or request.keys.v.shape[1] != request.queries.q.shape[1]:
        return Refusal("it takes no bias, no dropout and no shared heads of values")
    return SECONDS * request.queries.q.shape[2]


def read(request: Request) -> AttentionOutput:
    """The same as the reference."""
    logits = scores(request).masked_fill(~full_mask(request), -torch.inf)
    rows = [_one(logits[:, :, n], request.keys.v) for n in range(logits.shape[2])]
    return AttentionOutput(torch.stack([y for y, _ in rows], 2), torch.stack([lse for _, lse in rows], 2))


def _one(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    has_any = (logits > -torch.inf).any(-1)  # [B H]
    safe = torch.where(has_any[..., None], logits, 0.0)
    y = torch.where(has_any[..., None], safe.softmax(-1), 0.0)[:, :, None] @ v  # [B H 1 V]
    return y[:, :, 0], torch.where(has_any, safe.logsumexp(-1), -torch.inf)
