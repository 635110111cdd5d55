"""The reference executor: dense attention that defines what every other executor must compute."""

import torch
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, scores, softmax, weigh_values

CALL = 1.2e-4  # seconds of its operations, however few the pairs
SECONDS = 1e-10  # per score and number of a head's width: ten times what fused attention takes


def cost(request: Request) -> float:
    """It serves every request."""
    return CALL + request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Softmax over the allowed scores, times the values; y is 0 and lse -inf where a query may read nothing."""
    logits, where = scores(request), mask(request)
    attention, lse = softmax(logits if where is None else logits.masked_fill(~where, -torch.inf))
    return AttentionOutput(weigh_values(F.dropout(attention, request.dropout), request), lse)
