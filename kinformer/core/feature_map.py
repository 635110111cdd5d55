"""FeatureMap: features with products that approximate or equal a kernel of query and key."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """A map phi with kernel(q, k) = phi(q).phi(k) exp(constant(q) + constant(k)).

    The input x is the projection itself, in the heads of the keys, with the queries of one group in sequence. A map
    with a kernel of q.k / sqrt(K) divides x itself. `constant` is the log of the factor that phi leaves out, per
    vector. Sums keep it separate, so that no feature needs to be large, and the lse of a read adds it back.

    signed: True if a product of features may be negative. A sum of products is then an estimate of a positive number
        and has no logarithm; `denominator` makes the sum over all keys suitable as a divisor.
    levels: True if sums are kept relative to the largest weight among the keys, so that none overflows; `denominator`
        gets the relative sum. If False, it gets the sum itself, and constants must be 0.
    by_vector: a promise that the result for a vector depends only on this vector. Long rows are then mapped and read in
        chunks.
    """

    signed: bool = False
    levels: bool = True
    by_vector: bool = False

    @abstractmethod
    def features(self, k_dim: int) -> int:
        """Return the number of features for vectors of width k_dim."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        """Return phi and the constant of each vector."""

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the divisor of a read, given the sum of products over all of its keys."""
        return total
