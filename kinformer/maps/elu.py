"""ELU: elu(x) + 1, the simplest positive features."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.feature_map import FeatureMap


class ELU(FeatureMap):
    """phi(x) = elu(x) + 1: x + 1 above 0, exp(x) below. The plain linear Transformer: no parameters, no randomness.

    Its kernel is its own, not an estimate of exp(q.k), and q.k is not divided by sqrt(K): reads of it merge with each
    other alone. Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 7.
    """

    def features(self, k_dim: int) -> int:
        return k_dim

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        # exp and not elu + 1, which rounds to 0 from -17 on in float32; nor would the product of two at -37 be above 0
        most = x.detach().amax(-1).clamp_max(0)
        above = x.relu()
        return (x - above - most[..., None]).exp() + above, most  # where some x is above 0, most is 0


EXAMPLES = (lambda: ELU(),)
