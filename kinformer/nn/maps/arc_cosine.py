"""ArcCosine: rectified products with random directions, the second map of random feature attention."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_flag, check_in_range
from kinformer.nn.maps.random_features import HeadDirections


class ArcCosine(HeadDirections):
    """Feature map of linear attention: rectified random features that estimate an arc-cosine kernel.

    phi(x) = sqrt(1 / D) [max(w_1.x^, 0) .. max(w_D.x^, 0)] + eps, with x^ = x / |x| and normal w

    Choose it over `RandomFourier` if a model is trained from scratch and need not be near softmax. No feature is
    negative, so sums over few keys are not noisy, and attention has a log-sum-exp. D random directions give D features
    instead of 2 D.

    The expected product of phi(x) and phi(y) is (sin a + (pi - a) cos a) / (2 pi), with a the angle between x and y. It
    is 1/2 for equal directions and 0 for opposite ones, and flatter than softmax. If all directions are multiplied by a
    factor, the attention weights stay the same, so there is no temperature to learn. The product q.k is not divided by
    sqrt(K). Attention over one set of keys can be merged with attention over another only if both use this map.

    heads, k_dim, directions: as in `HeadDirections`; the paper uses twice as many directions as for sines and cosines.
    eps: added to each feature, so that no divisor is 0; 0 in the paper's equation.
    unit: if True, divide x by its norm, as the paper does.
    redraw: number of training steps after which new random directions are made, None for never; 1 in the paper's
        training.
    seed: seed of the first directions; checkpoints contain the directions.

    Errors: ValueError if the number or the width of the heads differs. Source: Peng et al., 2021, arXiv:2103.02143,
    section 3.1 and appendix A; the kernel: Cho and Saul, 2009,
    https://papers.nips.cc/paper/3628-kernel-methods-for-deep-learning, of degree 1.
    """

    by_vector = True

    def __init__(
        self,
        heads: int,
        k_dim: int,
        directions: int = 64,
        *,
        eps: float = 1e-6,
        unit: bool = True,
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(heads, k_dim, directions, redraw, seed)
        self.eps, self.unit = check_in_range("eps", eps, 0.0, 1.0), check_flag("unit", unit)

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        self.check(x)
        x = F.normalize(x, dim=-1) if self.unit else x
        w = self.directions.to(x.dtype) * self.shape[1] ** -0.5
        return (x @ w.mT).relu() + self.eps, x.new_zeros(x.shape[:-1])  # [B H T K] [H K D]


EXAMPLES = (lambda: ArcCosine(2, 8, 16), lambda: ArcCosine(2, 8, 16, unit=False, redraw=1))
