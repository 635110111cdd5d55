"""Looks: what a computation fetches from where its tensors live, so that Python must wait for the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FETCHES = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
)


class Looks(TorchDispatchMode):
    """Counts them while it lasts."""

    count = 0

    def __torch_dispatch__(self, function: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        self.count += function in FETCHES
        return function(*args, **(kwargs or {}))
