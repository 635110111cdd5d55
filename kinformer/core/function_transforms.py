"""Function transforms and second derivatives: checks for autograd Functions with their own backward.

Such a Function has no rules for transforms such as vmap, or for a second derivative.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_transformed() -> bool:
    """Return True under vmap, jvp or another function transform, or in forward-mode differentiation."""
    return torch._C._are_functorch_transforms_active() or is_forward_mode()


def are_plain_tensors(*tensors: Tensor) -> bool:
    """Return True if no tensor is part of a trace or of a transform such as vmap and jvp.

    tensors: the tensors.
    """
    if torch.jit.is_tracing() or is_transformed():  # type: ignore[attr-defined]
        return False
    return all(type(x) in (Tensor, Parameter) for x in tensors)


def is_forward_mode() -> bool:
    """Return True in forward-mode differentiation, by jvp or dual numbers."""
    return forward_ad._current_level >= 0


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the backward of an autograd Function so that a second derivative raises an error.

    PyTorch's `once_differentiable` raises only if `backward()` is called. `torch.autograd.grad` of named inputs finds
    no path to its error and silently leaves out the term.

    backward: the backward of a Function, with its context as the first argument.

    Errors: RuntimeError at the second derivative.
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
    """A gradient with graph edges to everything it was computed from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *on: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(
            "this fast implementation cannot differentiate twice; use torch.func (hessian, jacrev), or pass "
            "impl='reference' if the mechanism has a parameter impl"
        )
