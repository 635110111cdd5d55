"""run_uncompiled: exclude a function from torch.compile without importing the compiler."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def run_uncompiled(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that a compiled caller runs it uncompiled, by `torch.compiler.disable`.

    `torch.compiler.disable` is called only while compiling: its import takes over a second, and most commands compile
    nothing.

    call: function to decorate.
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(call)(*args, **kwargs)
        return call(*args, **kwargs)

    return called
