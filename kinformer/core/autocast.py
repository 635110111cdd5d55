"""autocast: the dtype of matrix products, and computation in the full precision of the inputs."""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which PyTorch multiplies x by a matrix.

    That is the dtype of autocast (automatic mixed precision) if it is on and x is not float64, otherwise the dtype of
    x.

    x: a tensor.
    """
    return torch.get_autocast_dtype(x.device.type) if _is_lowered(x) and x.dtype != torch.float64 else x.dtype


def to_autocast(x: Tensor) -> Tensor:
    """Return x in the dtype in which PyTorch multiplies it by a matrix: autocast's, if autocast is on.

    x: a tensor.
    """
    return x.to(autocast_dtype(x))


def disable_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context that disables autocast on the device of x.

    Entering an autocast context takes as long as the computation of a short row. So the returned context does nothing
    if autocast is off.

    x: a tensor.
    """
    return torch.autocast(x.device.type, enabled=False) if _is_lowered(x) else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 or better.

    x: a tensor.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear_float32(unit: nn.Linear, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape N"]:
    """Apply a linear layer in float32 or better, also under autocast.

    unit: the linear layer.
    x: its input.
    """
    bias = None if unit.bias is None else at_least_float32(unit.bias)
    with disable_autocast(x):
        return F.linear(at_least_float32(x), at_least_float32(unit.weight), bias)


def _is_lowered(x: Tensor) -> bool:
    """Return True if autocast lowers products on the device of x; False for meta tensors (no values)."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
