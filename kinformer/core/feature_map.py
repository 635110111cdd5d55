"""FeatureMap: features whose products stand for a kernel of query and key."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """phi with kernel(q, k) = phi(q).phi(k) exp(log_constant(q) + log_constant(k)).

    `features` is how many numbers phi has for inputs of width k_dim. `log_constant` is what phi left out of the
    kernel, per vector, so that a read's lse can add it back.
    """

    @abstractmethod
    def features(self, k_dim: int) -> int: ...

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]: ...
