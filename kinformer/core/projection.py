"""Projection: from what a layer sees to queries, keys and values per head."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import HeadSizes, Keys, Queries


class Projection(nn.Module, ABC):
    """Queries of `heads` heads, keys of `key_heads` and values of `value_heads` heads, from vectors of width `d`.

    What turns by position (rotary) turns here, in both. `bias` says whether its matrices have biases, which the layer's
    output matrix then has too.
    """

    d: int
    heads: int
    key_heads: int
    k_dim: int
    v_dim: int
    bias: bool = True

    @property
    def value_heads(self) -> int:
        """Heads of values: those of the keys unless a projection says else."""
        return self.key_heads

    def sizes(self, cross: bool = False) -> HeadSizes:
        """The heads and widths that a mechanism is told of."""
        return HeadSizes(self.heads, self.key_heads, self.value_heads, self.k_dim, self.v_dim, cross)

    @abstractmethod
    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries: ...

    @abstractmethod
    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys: ...

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        """Queries and keys of a sequence that reads itself; one product where that is cheaper."""
        return self.queries(x, pos), self.keys(x, pos)

    def forward(self, x: Tensor, pos: Tensor, source: Tensor, source_pos: Tensor) -> tuple[Queries, Keys]:
        """Queries of x, keys and values of source."""
        return self.queries(x, pos), self.keys(source, source_pos)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """The weight and bias that make "q", "k" or "v": what an `ExtraProjection(like=name)` starts as a copy of."""
        raise ValueError(f"{type(self).__name__} has no matrix of its own for {name!r}; use QKV with this mechanism")


def by_head(x: Float[Tensor, "B T HN"], heads: int) -> Float[Tensor, "B H T N"]:
    """Split the last axis into heads: head h takes columns h n .. (h + 1) n - 1."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)
