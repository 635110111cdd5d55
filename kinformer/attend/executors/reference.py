"""Executor reference: dense attention that defines the result of every other executor."""

import torch
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, scores, softmax, weigh_values

CALL = 1.2e-4  # constant seconds of its operations
SECONDS = 1e-10  # per score and number of a head's width: ten times the time of fused attention


def cost(request: Request) -> float:
    """Return the estimated seconds of a `request` by dense attention; this executor supports all requests."""
    return CALL + request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Compute y and log-sum-exp of a `request`: softmax over the allowed scores, times the values.

    A query without an allowed key gets y = 0 and lse = -inf.
    """
    logits, where = scores(request), mask(request)
    attention, lse = softmax(logits if where is None else logits.masked_fill(~where, -torch.inf))
    return AttentionOutput(weigh_values(F.dropout(attention, request.dropout), request), lse)
