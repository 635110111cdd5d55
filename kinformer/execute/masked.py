"""The masked executor: one call of PyTorch's fused kernel for the CPU under a mask, keys in any order, with its lse."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from kinformer.core.read import Read
from kinformer.core.request import Refusal, Request
from kinformer.core.scores import mask
from kinformer.execute.support import flash
from kinformer.scores.product import Product

CALL = 2e-5  # seconds
SECONDS = 2e-11  # per score and number of a head's width: twice what is taken without a mask


def cost(request: Request) -> float | Refusal:
    """It adds numbers to the product of query and key, and takes no other scores."""
    if torch.compiler.is_compiling():
        return Refusal("its gradient is no part of a graph")
    plain = isinstance(request.score, Product) and request.bias is None
    if not plain or not flash.serves(request) or not request.pairs:
        return Refusal("it takes the product of query and key on a CPU, without bias or dropout, and values as wide")
    return CALL + request.pairs * SECONDS * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> Read:
    """The same y and lse as the reference."""
    return Read(*Masked.apply(request.queries.q, request.keys.k, request.keys.v, _added(request), request.scale))


def _added(request: Request) -> Float[Tensor, "#B #H T S"] | None:
    """What the scores are more than a product: -inf where a pair is not read."""
    where, score = mask(request), request.score
    assert isinstance(score, Product)
    added = score.change(request)
    if where is None:
        return added
    added = request.queries.q.new_zeros(where.shape) if added is None else added
    return added.masked_fill_(~where, -torch.inf)


class Masked(torch.autograd.Function):
    """y and lse of the kernel, and its gradients; a query without a key reads 0 and -inf."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S D"],
        added: Float[Tensor, "#B #H T S"] | None,
        scale: float,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T"]]:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        y, lse = flash.forward(q, k, v, 0.0, False, attn_mask=added, scale=scale)
        if added is not None:
            lse = lse.masked_fill(added.amax(-1) == -torch.inf, -torch.inf)
        ctx.set_materialize_grads(False)
        ctx.scale = scale  # type: ignore[attr-defined]
        ctx.save_for_backward(q, k, v, added, y, lse)  # type: ignore[arg-type]
        return y, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gy: Tensor | None, gl: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, added, y, lse = ctx.saved_tensors  # type: ignore[attr-defined]
        gy, y = flash._with_lse(torch.zeros_like(y) if gy is None else gy, gl, y)
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        scale = ctx.scale  # type: ignore[attr-defined]
        return *flash.backward(gy, q, k, v, y, lse, 0.0, False, attn_mask=added, scale=scale), None, None
