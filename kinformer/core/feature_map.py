"""FeatureMap: features whose products stand for a kernel of query and key."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """phi with kernel(q, k) = phi(q).phi(k) exp(log_constant(q) + log_constant(k)).

    `features` is how many numbers phi has for inputs of width k_dim. `log_constant` is what phi left out of the
    kernel, per vector, so that a read's lse can add it back. x comes as it was projected: a map whose kernel wants
    q.k / sqrt(K) divides x itself. It comes in the heads of the keys, queries of one group one after the other.

    `signed` says that a product of features may be negative: then a sum of products is only an estimate of something
    positive, it has no logarithm, and `denominator` is where it is made fit to divide by, once, after all keys are
    added.
    """

    signed: bool = False

    @abstractmethod
    def features(self, k_dim: int) -> int: ...

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]: ...

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """What a read divides by, given the sum of products over all of its keys."""
        return total
