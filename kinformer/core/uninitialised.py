"""Building a model without initialising its parameters, which is faster."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = {  # functions that fill parameters, the most expensive part of building a member
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, nn.init.xavier_uniform_),
    *(Tensor.normal_, Tensor.uniform_),
}


class Uninitialised(TorchFunctionMode):
    """A context in which parameters are not drawn at random, so that they hold arbitrary numbers.

    Choose it to build a model whose weights are read from a file afterwards. All other tensors have the numbers that
    they always have, because a file does not hold all of them. So draws of buffers, of views, and from a generator of
    their own stay. Tensors on the meta device have no numbers, so nothing is drawn there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func in DRAWS and keywords.get("generator") is None:
            tensor = args[0] if args else keywords["tensor"]
            if isinstance(tensor, nn.Parameter) or tensor.is_meta:
                return tensor
        return func(*args, **keywords)
