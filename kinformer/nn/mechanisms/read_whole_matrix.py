"""read_whole: softmax attention from a whole matrix of scores that a mechanism has computed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, softmax, weigh_values


def read_whole(scores: Float[Tensor, "B H T S"], request: Request) -> tuple[AttentionOutput, Float[Tensor, "B H T S"]]:
    """Return the softmax attention output for a matrix of scores, and the weights before dropout.

    scores: scores of all pairs, [B, H, T, S].
    request: attention call with the keys, the pattern and the dropout. Pairs that its pattern does not allow are
        masked.
    """
    where = mask(request)
    weights, lse = softmax(scores if where is None else scores.masked_fill(~where, -torch.inf))
    return AttentionOutput(weigh_values(F.dropout(weights, request.dropout), request), lse), weights
