"""autocast: in which precision products are made, and how to make them as precise as what goes in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precision(x: Tensor) -> torch.dtype:
    """In which a product of x would be made: autocast lowers all but float64."""
    return torch.get_autocast_dtype(x.device.type) if _on(x) and x.dtype != torch.float64 else x.dtype


def lowered(x: Tensor) -> Tensor:
    """x as a product would take it."""
    return x.to(precision(x))


def exact(x: Tensor) -> AbstractContextManager:
    """Where x is, no product is lowered. To enter autocast takes as long as a short row, so it is left alone if off."""
    return torch.autocast(x.device.type, enabled=False) if _on(x) else nullcontext()


def _on(x: Tensor) -> bool:
    """Does autocast lower products there? Of tensors without numbers there is none."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
