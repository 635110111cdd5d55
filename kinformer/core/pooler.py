"""Pooler: one vector of a row, from the vectors of its tokens."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32


class Pooler(nn.Module, ABC):
    """How a row becomes one vector. `own` is how many tokens it adds to a row; `vectors` stand in it side by side."""

    own: int = 0
    vectors: int = 1

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        """The rows that the model reads in place of these; `mark` is an id that no token has."""
        return tokens

    @abstractmethod
    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        """The vectors of such rows, of which the real ones count, as one."""


def sum_tokens(y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """The sum over the real tokens, added up in float32 or better; under autocast the result stays float32."""
    total = at_least_float32(y).where(real[..., None], 0.0).sum(1)
    return total if torch.is_autocast_enabled(y.device.type) else total.to(y.dtype)
