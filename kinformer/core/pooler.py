"""Pooler: the map from the vectors of a row's tokens to one vector."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.keyword_hints import KeywordHints


class Pooler(nn.Module, KeywordHints, ABC):
    """Base class of maps from the vectors of a row's tokens to one vector, for classification.

    own: the number of tokens, such as a class token, that the pooler adds to a row.
    vectors: the number k of vectors that are concatenated to the result.
    """

    own: int = 0
    vectors: int = 1

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        """Return the rows of tokens with the pooler's own tokens added.

        The default adds nothing. `mark` is an id that no token of the vocabulary has, for the added tokens.
        """
        return tokens

    @abstractmethod
    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        """Return one vector for each row from the tokens at which `real` is True."""


def sum_tokens(y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """Return the sum over the real tokens, computed in float32 or better.

    Under autocast the result stays in float32.

    y: vectors of tokens, [B T D].
    real: True at real tokens, [B T].
    """
    total = at_least_float32(y).where(real[..., None], 0.0).sum(1)
    return total if torch.is_autocast_enabled(y.device.type) else total.to(y.dtype)
