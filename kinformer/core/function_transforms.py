"""transforms: what a Function with a backward of its own has no rules for: transforms, and second derivatives."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_transformed() -> bool:
    """Under vmap, jvp or another transform of functions, or where derivatives go forward."""
    return torch._C._are_functorch_transforms_active() or is_forward_mode()


def are_plain_tensors(*tensors: Tensor) -> bool:
    """Are tensors what they seem, and no part of a trace or of a transform such as vmap and jvp?"""
    if torch.jit.is_tracing() or is_transformed():  # type: ignore[attr-defined]
        return False
    return all(type(x) in (Tensor, Parameter) for x in tensors)


def is_forward_mode() -> bool:
    """Do derivatives go forward, by jvp or dual numbers?"""
    return forward_ad._current_level >= 0


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that cannot be differentiated itself, and says so to whoever tries.

    PyTorch's `once_differentiable` says it where `backward()` is called; `torch.autograd.grad` of named inputs finds no
    path to its error and leaves its part out of the sum without a word.
    """

    @wraps(backward)
    def backward_once(ctx: Any, *gradients: Tensor | None) -> Any:
        with torch.no_grad():
            grads = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return grads
        on = [x for x in (*ctx.saved_tensors, *gradients) if x is not None and x.requires_grad]
        return tuple(None if x is None else _Twice.apply(x, *on) for x in grads)

    return backward_once


class _Twice(torch.autograd.Function):
    """A gradient, on the way to all that it was computed from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *on: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(
            "a fast form cannot differentiate twice: take no gradient of its gradient, ask torch.func for it (hessian, "
            "jacrev), or where the mechanism has impl=, name impl='reference'"
        )
