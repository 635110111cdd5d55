"""Regulariser: a penalty on attention during training."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import Keys
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.request import Request


class Regulariser(nn.Module, KeywordHints, ABC):
    """Base class of penalties on attention: a number for each query, computed from an attention call.

    Use it as `Regularised(Softmax(Causal()), regulariser)`.

    key: the name of the penalty in reports; in a model `penalties={key: weight}` sets its weight.
    needs_lse: True if it needs attention weights, which are computed from the log-sum-exp (lse).
    allows_cross: True if it also applies to cross-attention.
    """

    key: str
    needs_lse: bool = False
    allows_cross: bool = True

    @abstractmethod
    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        """Return the penalty of each query of an attention call (`request`) with its output (`read`).

        `keys` holds the keys of the same tokens as the queries, in the same order; None in cross-attention.
        """
