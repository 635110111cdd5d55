"""Executor masked: one call of PyTorch's fused kernel for the CPU with a mask.

It returns the log-sum-exp too. Keys may lie in any order.
"""

import torch

from kinformer.attend import fused_kernel as kernel
from kinformer.attend.fused_kernel import additive_mask
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

CALL = 2e-5  # seconds
SECONDS = 2e-11  # per score and number of a head's width: twice the time without a mask


def cost(request: Request) -> float | Refusal:
    """Return the estimated seconds of the fused kernel with a mask for a request, or a Refusal.

    request: the attention call. Its scores must be products of query and key, with an optional added term.
    """
    if torch.compiler.is_compiling():
        return Refusal("the backward of this executor cannot be part of a compiled graph")
    # a subclass of Product may add its own numbers, but a subclass with its own `forward` is another score
    plain = isinstance(request.score, Product) and type(request.score).forward is Product.forward
    if not plain or request.bias is not None or not kernel.serves(request) or not request.pairs:
        return Refusal(
            "this executor needs dot-product scores on a CPU without bias or dropout, and at least one pair of a query "
            "and a key. Value heads must equal the key heads in number and width"
        )
    if not are_plain_tensors(request.queries.q, request.keys.k, request.keys.v):
        return Refusal("this executor needs plain tensors; some are traced, fake or under a function transform")
    return CALL + request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Compute y and log-sum-exp of a `request` by the fused kernel with a mask."""
    return kernel.read(
        kernel.MaskedRead(request.scale), request.queries.q, request.keys.k, request.keys.v, additive_mask(request)
    )
