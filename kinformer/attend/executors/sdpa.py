"""Executor sdpa: PyTorch's `scaled_dot_product_attention`.

It supports all patterns, but no bias and no log-sum-exp.
"""

from torch.nn import functional as F

from kinformer.attend.fused_kernel import additive_mask
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.function_transforms import is_forward_mode
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

SECONDS = 1e-11  # per score and number of a head's width
DROPPED = 5e-11  # with dropout on a CPU, which has no fused kernel for it: every weight is computed and stored
DROPPED_MASKED = 6e-11  # with dropout and a mask on a CPU


def cost(request: Request) -> float | Refusal:
    """Return the estimated seconds of `scaled_dot_product_attention` for a request, or a Refusal.

    request: the attention call. It must have dot-product scores without a bias, and `lse` False.
    """
    queries, keys = request.queries, request.keys
    if request.lse:
        return Refusal("PyTorch's attention function returns no log-sum-exp (lse)")
    if is_forward_mode():
        return Refusal("the fused kernels of PyTorch have no forward-mode derivative")
    if request.bias is not None or type(request.score) is not Product:
        return Refusal("this executor needs dot-product scores without a bias")
    if keys.k.shape[1] != keys.v.shape[1] or not request.pairs or not queries.q.shape[3]:
        return Refusal(
            "this executor needs as many key heads as value heads, at least one pair of a query and a key, and a key "
            "width above 0"
        )
    if queries.q.shape[1] % keys.k.shape[1]:
        return Refusal("the number of query heads must be a multiple of the number of key heads")
    return request.pairs * _seconds(request) * (queries.q.shape[3] + keys.v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Compute the output y of a `request`; its log-sum-exp is None."""
    queries, keys = request.queries, request.keys
    y = F.scaled_dot_product_attention(
        queries.q,
        keys.k,
        keys.v,
        attn_mask=additive_mask(request) if _is_masked(request) else None,
        dropout_p=request.dropout,
        is_causal=_is_causal(request),
        scale=request.scale,
        enable_gqa=queries.q.shape[1] != keys.k.shape[1],
    )
    return AttentionOutput(y, None)


def _seconds(request: Request) -> float:
    if request.dropout and request.queries.q.device.type == "cpu":
        return DROPPED_MASKED if _is_masked(request) else DROPPED
    return SECONDS * (0.5 if _is_causal(request) else 1)


def _is_masked(request: Request) -> bool:
    unmasked = request.full and type(request.pattern) is Full and request.where is None
    return not (unmasked or _is_causal(request))


def _is_causal(request: Request) -> bool:
    return request.is_causal and type(request.pattern) is Causal and request.where is None
