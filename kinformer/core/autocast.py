"""autocast: in which precision products are made, and how to make them as precise as what goes in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def autocast_dtype(x: Tensor) -> torch.dtype:
    """In which a product of x would be made: autocast lowers all but float64."""
    return torch.get_autocast_dtype(x.device.type) if _is_lowered(x) and x.dtype != torch.float64 else x.dtype


def to_autocast(x: Tensor) -> Tensor:
    """x as a product would take it."""
    return x.to(autocast_dtype(x))


def disable_autocast(x: Tensor) -> AbstractContextManager:
    """Where x is, no product is lowered. To enter autocast takes as long as a short row, so it is left alone if off."""
    return torch.autocast(x.device.type, enabled=False) if _is_lowered(x) else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear_float32(unit: nn.Linear, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape N"]:
    """What a unit makes of x, computed in float32 or better, under autocast too."""
    bias = None if unit.bias is None else at_least_float32(unit.bias)
    with disable_autocast(x):
        return F.linear(at_least_float32(x), at_least_float32(unit.weight), bias)


def _is_lowered(x: Tensor) -> bool:
    """Does autocast lower products there? Of tensors without numbers there is none."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
