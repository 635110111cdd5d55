"""Building a model without initialising its parameters, which is faster."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = {  # functions that fill parameters, the most expensive part of building a member
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, nn.init.xavier_uniform_),
    *(Tensor.normal_, Tensor.uniform_),
}


class Uninitialised(TorchFunctionMode):
    """A context in which PyTorch's initialisers do nothing, so that parameters hold arbitrary numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        return (args[0] if args else keywords["tensor"]) if func in DRAWS else func(*args, **keywords)
