"""Pooler: the map from the vectors of a row's tokens to one vector."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32


class Pooler(nn.Module, ABC):
    """A map from the vectors of a row's tokens to one vector.

    own: the number of tokens that the pooler adds to a row.
    vectors: the number of vectors that are concatenated in the result.
    """

    own: int = 0
    vectors: int = 1

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        """Return the rows that the model reads instead; `mark` is an id that no token has."""
        return tokens

    @abstractmethod
    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        """Return one vector for each row; only real tokens count."""


def sum_tokens(y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """Return the sum over the real tokens, computed in float32 or better.

    Under autocast the result stays in float32.

    y: vectors of tokens, [B T D].
    real: True at real tokens, [B T].
    """
    total = at_least_float32(y).where(real[..., None], 0.0).sum(1)
    return total if torch.is_autocast_enabled(y.device.type) else total.to(y.dtype)
