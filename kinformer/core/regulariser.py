"""Regulariser: what is held against attention while it trains."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import Keys
from kinformer.core.request import Request


class Regulariser(nn.Module, ABC):
    """A number for each query, of what the heads of a layer read and how: `Regularised(Softmax(Causal()), it)`.

    `key` is the name under which it is reported, and weighed in a model by `penalties={key: weight}`. `needs_lse` says
    that it looks at attention weights, `allows_cross` that it can be asked of a sequence that reads another one.
    """

    key: str
    needs_lse: bool = False
    allows_cross: bool = True

    @abstractmethod
    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        """Of a request and its read. `keys` are those of the tokens that ask, column by column; None across."""
