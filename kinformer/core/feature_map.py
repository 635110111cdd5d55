"""FeatureMap: features of queries and keys whose inner products approximate or equal a kernel."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class FeatureMap(nn.Module, KeywordHints, ABC):
    """Base class of feature maps phi, with kernel(q, k) = phi(q).phi(k) exp(constant(q) + constant(k)).

    A subclass writes `features` and `forward`. The input x of `forward` holds projected queries or keys, without a
    scale, in the heads of the keys. Queries of all heads that share a key head follow one another. A map for a kernel
    of q.k / sqrt(K) scales x itself. `constant` is the log of the factor that phi leaves out, per vector. Sums keep it
    separate, so that no feature needs to be large, and the log-sum-exp of an attention output adds it back.

    signed: True if a product of features may be negative. A sum of products is then an estimate of a positive number
        and has no logarithm; `denominator` makes the sum over all keys suitable as a divisor.
    levels: True if sums are kept relative to the largest weight among the keys, so that none overflows; `denominator`
        gets the relative sum. If False, it gets the sum itself, and constants must be 0.
    by_vector: a promise that the features of a vector depend only on this vector. Long rows are then computed in
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
        """Return the features phi and the constant of each vector of x."""

    def denominator(self, total: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the divisor of each query's output, given the sum of its feature products with all keys."""
        return total
