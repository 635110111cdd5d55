"""The masked executor: one call of PyTorch's fused kernel for the CPU under a mask, keys in any order, with its lse."""

import torch

from kinformer.attend import fused_kernel as kernel
from kinformer.attend.fused_kernel import additive_mask
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

CALL = 2e-5  # seconds
SECONDS = 2e-11  # per score and number of a head's width: twice what is taken without a mask


def cost(request: Request) -> float | Refusal:
    """It adds numbers to the product of query and key, and takes no other scores."""
    if torch.compiler.is_compiling():
        return Refusal("its gradient is no part of a graph")
    # a product that is changed by numbers of its own, or none: another `forward` is another score
    plain = isinstance(request.score, Product) and type(request.score).forward is Product.forward
    if not plain or request.bias is not None or not kernel.serves(request) or not request.pairs:
        return Refusal("it takes the product of query and key on a CPU, without bias or dropout, and values as wide")
    if not are_plain_tensors(request.queries.q, request.keys.k, request.keys.v):
        return Refusal("it takes plain tensors: none that are traced, faked or under a transform of functions")
    return CALL + request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> AttentionOutput:
    """The same y and lse as the reference."""
    return kernel.read(
        kernel.MaskedRead(request.scale), request.queries.q, request.keys.k, request.keys.v, additive_mask(request)
    )
