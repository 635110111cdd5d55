"""ReLU: the feature map max(x, 0) + eps of linear attention."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.feature_map import FeatureMap


class ReLU(FeatureMap):
    """Feature map of linear attention: rectified queries and keys, without parameters and randomness.

    phi(x) = max(x, 0) + eps

    Choose it over `ELU` if attention weights should differ more between keys, since features are sparse. The product
    phi(q).phi(k) is not an estimate of exp(q.k), and q.k is not divided by sqrt(K). Attention over one set of keys can
    be merged with attention over another only if both use this map.

    eps: number above 0 added to each feature, so that no vector has only features of 0. The Performer's code has 1e-3
        for relu without directions.

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
