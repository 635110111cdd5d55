"""run_uncompiled: what torch.compile leaves as it is, said without a compiler being imported."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def run_uncompiled(call: Callable[P, R]) -> Callable[P, R]:
    """`call` run as it stands where what calls it is compiled: `torch.compiler.disable`, asked for only there.

    Its import takes over a second, and most commands compile nothing.
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(call)(*args, **kwargs)
        return call(*args, **kwargs)

    return called
