"""ReLU: max(x, 0), sparse features."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.feature_map import FeatureMap


class ReLU(FeatureMap):
    """Rectified features, without parameters and without randomness.

    phi(x) = max(x, 0) + eps

    Choose it over `ELU` to tell keys apart. The kernel is not an estimate of exp(q.k), and q.k is not divided by
    sqrt(K). Reads can only be merged with reads of the same map.

    eps: added to each feature, above 0, so that no vector is without features. 1e-3 is the value of the Performer's
        code for relu without directions.

    Source: one of the maps of kernelised attention in Lin et al., 2021, arXiv:2106.04554, section 4.2.
    """

    by_vector = True

    def __init__(self, *, eps: float = 1e-3):
        super().__init__()
        self.eps = check_in_range("eps", eps, 1e-30, 1.0)

    def features(self, k_dim: int) -> int:
        return k_dim

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        return x.relu() + self.eps, x.new_zeros(x.shape[:-1])


EXAMPLES = (ReLU,)
