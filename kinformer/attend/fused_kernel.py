"""PyTorch's fused attention kernel for the CPU, with gradients through its log-sum-exp.

The module tests which requests the kernel supports. It also has the autograd function for all reads by the kernel.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import autocast_dtype, to_autocast
from kinformer.core.function_transforms import first_order
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask
from kinformer.core.scores.product import Product

forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
P = ParamSpec("P")
R = TypeVar("R")
TINY = 1e-20  # share of the lse's gradient below which a gradient of y counts as zero
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def serves(request: Request) -> bool:
    """Return True if PyTorch's fused kernel for the CPU supports `request`, apart from its bias.

    The kernel has no dropout. It needs keys and values of the same width and the same number of heads.
    """
    q, k, v = request.queries.q, request.keys.k, request.keys.v
    if request.dropout or q.device.type != "cpu" or autocast_dtype(q) not in DTYPES:
        return False
    same = q.dtype == k.dtype == v.dtype or autocast_dtype(k) == autocast_dtype(v) == autocast_dtype(q)
    _, heads, _, width = q.shape
    return same and width == v.shape[3] > 0 and k.shape[1] == v.shape[1] and heads % k.shape[1] == 0


def to_contiguous(x: Tensor) -> Tensor:
    """Return `x` with adjacent numbers in its last dimension, as the kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


class SavedTensors(NamedTuple):
    """The inputs and outputs of attention in a forward pass, which the backward pass needs.

    q, k, v: queries [B, H, T, D], keys and values [B, G, S, D].
    y, lse: output [B, H, T, D] and log-sum-exp [B, H, T].
    extra_inputs: further inputs of the method that may have a gradient.
    """

    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B G S D"]
    v: Float[Tensor, "B G S D"]
    y: Float[Tensor, "B H T D"]
    lse: Float[Tensor, "B H T"]
    extra_inputs: tuple[Tensor | None, ...]


class ReadWithGradients(ABC):
    """Base class for methods to compute attention: y and log-sum-exp (lse), and gradients of the inputs."""

    @abstractmethod
    def read(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S D"],
        *extra_inputs: Tensor | None,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T"]]:
        """Return the attention output y, and its log-sum-exp (lse) in float32 or better.

        q, k, v: queries, keys and values.
        extra_inputs: further tensors that may have a gradient.

        A query without a key gets y = 0 and lse = -inf.
        """

    @abstractmethod
    def gradients(
        self, gy: Float[Tensor, "B H T D"], saved: SavedTensors, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v and the extra inputs.

        gy: gradient of y.
        saved: inputs and outputs of the forward pass.
        needs: True for each input that needs a gradient, in the same order.
        """


def _without_autocast(of: Callable[P, R]) -> Callable[P, R]:
    """Disable autocast in a function: its inputs have their final dtype, which the mask must share."""

    @functools.wraps(of)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_autocast_enabled("cpu"):  # the context manager costs as much as attention over a short row
            return of(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return of(*args, **kwargs)

    return call


def read(method: ReadWithGradients, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None) -> AttentionOutput:
    """Compute attention by a method with its own backward, in autocast's dtype if autocast is enabled.

    method: the way to compute attention.
    q, k, v: queries, keys and values.
    extra_inputs: further tensors of the method that may have a gradient.
    """
    q, k, v = map(to_autocast, (q, k, v))
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, *extra_inputs)):
        return AttentionOutput(*FusedFunction.apply(method, q, k, v, *extra_inputs))
    return AttentionOutput(*_read_without_gradients(method, q, k, v, *extra_inputs))


@_without_autocast
def _read_without_gradients(
    method: ReadWithGradients, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None
) -> tuple[Tensor, Tensor]:
    return method.read(to_contiguous(q), to_contiguous(k), to_contiguous(v), *extra_inputs)


class FusedFunction(torch.autograd.Function):
    """Autograd function of a `ReadWithGradients` method, with gradients through y and the log-sum-exp."""

    @staticmethod
    @_without_autocast
    def forward(
        ctx: FunctionCtx, method: ReadWithGradients, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = map(to_contiguous, (q, k, v))
        y, lse = method.read(q, k, v, *extra_inputs)
        ctx.set_materialize_grads(False)
        ctx.way = method  # type: ignore[attr-defined]
        ctx.save_for_backward(q, k, v, y, lse, *extra_inputs)  # type: ignore[arg-type]
        return y, lse

    @staticmethod
    @first_order
    @_without_autocast
    def backward(ctx: FunctionCtx, gy: Tensor | None, gl: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, y, lse, *extra_inputs = ctx.saved_tensors  # type: ignore[attr-defined]
        method, needs = ctx.way, ctx.needs_input_grad[1:]  # type: ignore[attr-defined]
        return None, *compute_gradients(method, gy, gl, SavedTensors(q, k, v, y, lse, tuple(extra_inputs)), needs)


def compute_gradients(
    method: ReadWithGradients, gy: Tensor | None, gl: Tensor | None, saved: SavedTensors, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a method's inputs from the gradients of its y and log-sum-exp (lse).

    method: the way to compute attention.
    gy, gl: gradients of y and of lse, or None for zero.
    saved: inputs and outputs of the forward pass.
    needs: True for each input that needs a gradient: q, k, v and the extra inputs.
    """
    gy, y = _with_lse(torch.zeros_like(saved.y) if gy is None else gy, gl, saved.y)
    return method.gradients(gy, saved._replace(y=y), needs)


def _with_lse(gy: Tensor, gl: Tensor | None, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return gy and a changed y, with which the kernel's backward includes the gradient of the lse.

    The kernel subtracts <gy, y> in the gradient of each score. The gradient gl of the lse must be added there, so the
    changed y satisfies <gy, changed y> = <gy, y> - gl. If gy vanishes, a tiny gradient takes its place.
    """
    if gl is None:
        return gy, y
    wide = gy.to(gl.dtype)
    least = (gl.abs() * TINY).clamp_min(torch.finfo(gl.dtype).tiny)
    max_abs = torch.linalg.vector_norm(wide, torch.inf, -1)
    has_gradient = gl != 0  # a query without any gradient must keep a gradient of zero
    if bool((vanishes := has_gradient & (max_abs < least)).any()):
        gy = torch.cat((torch.where(vanishes[..., None], least[..., None].to(gy.dtype), gy[..., :1]), gy[..., 1:]), -1)
        wide = gy.to(gl.dtype)
        max_abs = torch.linalg.vector_norm(wide, torch.inf, -1)
    # scaled to a maximum of 1, because squares of large or small numbers overflow or underflow
    direction = wide / max_abs.where(max_abs > 0, 1.0)[..., None]
    share = torch.where(has_gradient, gl / max_abs / direction.square().sum(-1), 0.0)
    return gy, y - (share[..., None] * direction).to(y.dtype)


def finite_lse(lse: Float[Tensor, "B H T"]) -> Float[Tensor, "B H T"]:
    """Return the log-sum-exp `lse` with 0 instead of -inf, for the backward pass of the kernel.

    -inf stands at queries without a key. The 0 has no effect, because all keys of such a query are masked.
    """
    return lse.masked_fill(lse == -torch.inf, 0.0)


def call_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, empty: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return y and log-sum-exp of one call of PyTorch's fused kernel.

    q, k, v: queries, keys and values.
    added: numbers to add to the scores, -inf at excluded pairs, or None.
    empty: True for each query without a key, or None; the lse of these queries becomes -inf.
    causal: True for the kernel's causal mask.
    scale: factor of the product.
    """
    y, lse = forward(q, k, v, 0.0, causal, attn_mask=added, scale=scale)
    return y, lse if empty is None else lse.masked_fill(empty, -torch.inf)


def call_backward(
    gy: Tensor, saved: SavedTensors, added: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v of one call of PyTorch's fused kernel.

    gy: gradient of y.
    saved: inputs and outputs of the forward pass.
    added: numbers to add to the scores, -inf at excluded pairs, or None.
    causal: True for the kernel's causal mask.
    scale: factor of the product.
    """
    q, k, v, y, lse, _ = saved
    lse = lse if added is None else finite_lse(lse)
    return tuple(backward(gy, q, k, v, y, lse, 0.0, causal, attn_mask=added, scale=scale))


class MaskedRead(ReadWithGradients):
    """Method that calls PyTorch's fused kernel once with an additive mask, its only extra input.

    scale: factor of the product.
    """

    def __init__(self, scale: float):
        self.scale = scale

    def read(self, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        empty = None if extra_inputs[0] is None else extra_inputs[0].amax(-1) == -torch.inf
        return call_forward(q, k, v, extra_inputs[0], empty, False, self.scale)

    def gradients(self, gy: Tensor, saved: SavedTensors, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return *call_backward(gy, saved, saved.extra_inputs[0], False, self.scale), None


def additive_mask(request: Request) -> Float[Tensor, "#B #H T S"] | None:
    """Return the mask of a request as numbers to add to the scores: -inf at pairs that are not allowed.

    request: the attention call; its score must be a `Product` (scaled dot product). A change of its scores is part of
        the mask.

    Returns None if all pairs are allowed and the scores are not changed.

    All layers of a forward pass share this mask. If the kernel got a boolean mask, it would make a new additive mask in
    each layer.
    """
    where, score, q = mask(request), request.score, request.queries.q
    assert isinstance(score, Product)
    change = score.checked_change(request)
    if change is not None:
        change = change.to(autocast_dtype(q))
        return change if where is None else change.masked_fill(~where, -torch.inf)  # a subclass may keep the tensor
    if where is None:
        return None

    def make() -> Tensor:
        return q.new_zeros(where.shape, dtype=autocast_dtype(q)).masked_fill_(~where, -torch.inf)

    return make() if request.where is not None else request.memo.get(make, "added", where, autocast_dtype(q))
