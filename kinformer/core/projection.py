"""Projection: the map from a layer's input to queries, keys and values by head."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.keyword_hints import KeywordHints


class Projection(nn.Module, KeywordHints, ABC):
    """Base class of maps from vectors of width `d` to queries, keys and values by head.

    A projection also rotates queries and keys by their positions, if it uses rotary position encoding.

    d: the width of the input.
    heads, key_heads: the numbers of query heads and key heads.
    k_dim, v_dim: the widths of one key and of one value.
    bias: True if the matrices have bias vectors; the layer's output matrix then has one too.
    """

    d: int
    heads: int
    key_heads: int
    k_dim: int
    v_dim: int
    bias: bool = True

    @property
    def value_heads(self) -> int:
        """The number of value heads; equal to `key_heads` unless a projection overrides it."""
        return self.key_heads

    def sizes(self, cross: bool = False) -> HeadSizes:
        """Return the numbers of heads and the widths for a mechanism."""
        return HeadSizes(self.heads, self.key_heads, self.value_heads, self.k_dim, self.v_dim, cross)

    @abstractmethod
    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries: ...

    @abstractmethod
    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys: ...

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        """Return queries and keys (with values) of self-attention, by one matrix product if that is faster."""
        return self.queries(x, pos), self.keys(x, pos)

    def forward(self, x: Tensor, pos: Tensor, source: Tensor, source_pos: Tensor) -> tuple[Queries, Keys]:
        """Return the queries of x, and the keys and values of `source`."""
        return self.queries(x, pos), self.keys(source, source_pos)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of "q", "k" or "v".

        A further projection with `ExtraProjection(like=name)` starts from their values.

        Errors: ValueError if the projection has no such matrix.
        """
        raise ValueError(f"{type(self).__name__} has no separate matrix for {name!r}; use QKV with this mechanism")


def by_head(x: Float[Tensor, "B T HN"], heads: int) -> Float[Tensor, "B H T N"]:
    """Split the last axis into H heads of width n: head h takes the entries h n .. (h + 1) n - 1.

    x: vectors, [B T HN].
    heads: the number of heads H.
    """
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)
