"""Projection: from what a layer sees to queries, keys and values per head."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Projection(nn.Module, ABC):
    """Queries of `heads` heads, keys and values of `key_heads` heads.

    What turns by position (rotary) turns here, in both.
    """

    heads: int
    key_heads: int
    k_dim: int
    v_dim: int

    @abstractmethod
    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]: ...

    @abstractmethod
    def keys(
        self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]: ...

    def forward(self, x: Tensor, pos: Tensor, source: Tensor, source_pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of source."""
        return self.queries(x, pos), *self.keys(source, source_pos)


def by_head(x: Float[Tensor, "B T HN"], heads: int) -> Float[Tensor, "B H T N"]:
    """Split the last axis into heads: head h takes columns h n .. (h + 1) n - 1."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)
