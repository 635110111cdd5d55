"""Building a model without drawing the initial values of its parameters."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = {  # functions that fill parameters, the most expensive part of building a member
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, nn.init.xavier_uniform_),
    *(Tensor.normal_, Tensor.uniform_),
}


class Uninitialised(TorchFunctionMode):
    """A context in which initialisers draw nothing; tensors hold whatever their memory held."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        return (args[0] if args else keywords["tensor"]) if func in DRAWS else func(*args, **keywords)
