"""Undrawn: a model is built, and what its parameters begin with is not drawn."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = {  # what fills parameters, and is dearest of all that is done to build a member
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, nn.init.xavier_uniform_),
    *(Tensor.normal_, Tensor.uniform_),
}


class Uninitialised(TorchFunctionMode):
    """While it is entered nothing is drawn into tensors; what stood in the memory stays there."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        return (args[0] if args else keywords["tensor"]) if func in DRAWS else func(*args, **keywords)
