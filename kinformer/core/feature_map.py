"""FeatureMap: features whose products stand for a kernel of query and key."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """phi with kernel(q, k) = phi(q).phi(k) exp(constant(q) + constant(k)).

    x comes as it was projected, in the heads of the keys, queries of one group one after the other: a map whose kernel
    wants q.k / sqrt(K) divides x itself. `constant` is the log of what phi left out of the kernel, per vector: sums
    keep it apart, so that no feature need be large, and a read's lse adds it back.

    `signed` says that a product of features may be negative: then a sum of products is only an estimate of something
    positive and has no logarithm, and `denominator` makes the sum over all keys fit to divide by. `levels`
    says that sums are kept over the largest weight among the keys, so that none overflows, and that `denominator` is
    handed that; without it, it is handed the sum itself, and constants must be 0.
    `by_vector` promises that what a vector is mapped to depends on nothing but itself: long rows are then mapped and
    read in chunks.
    """

    signed: bool = False
    levels: bool = True
    by_vector: bool = False

    @abstractmethod
    def features(self, k_dim: int) -> int:
        """How many numbers phi has for vectors of width k_dim."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        """phi and the constant of each vector."""

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """What a read divides by, given the sum of products over all of its keys."""
        return total
