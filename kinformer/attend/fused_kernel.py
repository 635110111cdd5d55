"""kernel: PyTorch's fused kernel for the CPU, with its lse: what it serves, and the one Function of its gradients."""

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
TINY = 1e-20  # of the lse's gradient: a gradient of y below it is none
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def serves(request: Request) -> bool:
    """Can the kernel read a request, but for its bias? No dropout, and widths alike."""
    q, k, v = request.queries.q, request.keys.k, request.keys.v
    if request.dropout or q.device.type != "cpu" or autocast_dtype(q) not in DTYPES:
        return False
    same = q.dtype == k.dtype == v.dtype or autocast_dtype(k) == autocast_dtype(v) == autocast_dtype(q)
    _, heads, _, width = q.shape
    return same and width == v.shape[3] > 0 and k.shape[1] == v.shape[1] and heads % k.shape[1] == 0


def to_contiguous(x: Tensor) -> Tensor:
    """x as the kernel takes it: the numbers of a vector side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


class SavedTensors(NamedTuple):
    """Inputs and outputs of a forward. `extra_inputs` are further inputs that have a gradient."""

    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B G S D"]
    v: Float[Tensor, "B G S D"]
    y: Float[Tensor, "B H T D"]
    lse: Float[Tensor, "B H T"]
    extra_inputs: tuple[Tensor | None, ...]


class ReadWithGradients(ABC):
    """The forward and backward of attention as y and lse. `extra_inputs` are further tensors that have a gradient."""

    @abstractmethod
    def read(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S D"],
        *extra_inputs: Tensor | None,
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T"]]:
        """y, and lse in float32 or better; a query without a key reads 0 and -inf."""

    @abstractmethod
    def gradients(
        self, gy: Float[Tensor, "B H T D"], saved: SavedTensors, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """Of q, k, v and `extra_inputs`, from that of y. Not all are `wanted`."""


def _without_autocast(of: Callable[P, R]) -> Callable[P, R]:
    """Without autocast: what is handed in has its precision, and a mask of another one is refused."""

    @functools.wraps(of)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_autocast_enabled("cpu"):  # entering and leaving takes as long as some short rows
            return of(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return of(*args, **kwargs)

    return call


def read(method: ReadWithGradients, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None) -> AttentionOutput:
    """What a way reads, in the precision of products."""
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
    """A way to read, with its gradients, through the lse too."""

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
    """The gradients of a way from those of its y and its lse."""
    gy, y = _with_lse(torch.zeros_like(saved.y) if gy is None else gy, gl, saved.y)
    return method.gradients(gy, saved._replace(y=y), needs)


def _with_lse(gy: Tensor, gl: Tensor | None, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernel is handed for y, so that the gradient of the lse is in what it makes of y and its gradient.

    It takes <gy, y> off each score's gradient; that of the lse belongs beside it.
    """
    if gl is None:
        return gy, y
    wide = gy.to(gl.dtype)
    least = (gl.abs() * TINY).clamp_min(torch.finfo(gl.dtype).tiny)
    max_abs = torch.linalg.vector_norm(wide, torch.inf, -1)
    has_gradient = gl != 0  # where neither has a gradient none is made up: it would say that somebody asks
    if bool((vanishes := has_gradient & (max_abs < least)).any()):
        gy = torch.cat((torch.where(vanishes[..., None], least[..., None].to(gy.dtype), gy[..., :1]), gy[..., 1:]), -1)
        wide = gy.to(gl.dtype)
        max_abs = torch.linalg.vector_norm(wide, torch.inf, -1)
    # of a size of 1: squares of what is large or small would be none
    direction = wide / max_abs.where(max_abs > 0, 1.0)[..., None]
    share = torch.where(has_gradient, gl / max_abs / direction.square().sum(-1), 0.0)
    return gy, y - (share[..., None] * direction).to(y.dtype)


def finite_lse(lse: Float[Tensor, "B H T"]) -> Float[Tensor, "B H T"]:
    """What the kernel is handed for lse: a query without a key has a mask of -inf alone, whatever its level."""
    return lse.masked_fill(lse == -torch.inf, 0.0)


def call_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, empty: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """y and lse of one call; `empty` queries have no key."""
    y, lse = forward(q, k, v, 0.0, causal, attn_mask=added, scale=scale)
    return y, lse if empty is None else lse.masked_fill(empty, -torch.inf)


def call_backward(
    gy: Tensor, saved: SavedTensors, added: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v of one call."""
    q, k, v, y, lse, _ = saved
    lse = lse if added is None else finite_lse(lse)
    return tuple(backward(gy, q, k, v, y, lse, 0.0, causal, attn_mask=added, scale=scale))


class MaskedRead(ReadWithGradients):
    """One call of the kernel under a mask."""

    def __init__(self, scale: float):
        self.scale = scale

    def read(self, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        empty = None if extra_inputs[0] is None else extra_inputs[0].amax(-1) == -torch.inf
        return call_forward(q, k, v, extra_inputs[0], empty, False, self.scale)

    def gradients(self, gy: Tensor, saved: SavedTensors, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return *call_backward(gy, saved, saved.extra_inputs[0], False, self.scale), None


def additive_mask(request: Request) -> Float[Tensor, "#B #H T S"] | None:
    """The additive mask and bias of a kernel: -inf where a pair is not read.

    All layers of a forward share this mask. From a boolean mask a kernel would make an additive one for each layer.
    """
    where, score, q = mask(request), request.score, request.queries.q
    assert isinstance(score, Product)
    change = score.checked_change(request)
    if change is not None:
        change = change.to(autocast_dtype(q))
        return change if where is None else change.masked_fill(~where, -torch.inf)  # a subclass may keep its own
    if where is None:
        return None

    def make() -> Tensor:
        return q.new_zeros(where.shape, dtype=autocast_dtype(q)).masked_fill_(~where, -torch.inf)

    return make() if request.where is not None else request.memo.get(make, "added", where, autocast_dtype(q))
