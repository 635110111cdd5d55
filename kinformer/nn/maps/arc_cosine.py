"""ArcCosine: rectified random directions, random feature attention's other kernel."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_flag, check_in_range
from kinformer.nn.maps.random_features import HeadDirections


class ArcCosine(HeadDirections):
    """Random feature attention's second map: features max(w.x, 0), which estimate an arc-cosine kernel of unit vectors.

    phi(x) = sqrt(1 / D) [max(w_1.x^, 0) .. max(w_D.x^, 0)] + eps, x^ = x / |x|, w drawn, normal

    Choose it over `RandomFourier` where a model is trained from the start and need not be near softmax: no feature is
    negative, so early sums are no noise, reads have an lse, and D directions make D features in place of 2 D. On
    average phi(x).phi(y) = (sin a + (pi - a) cos a) / (2 pi), a being the angle of x and y: from 1/2 where they are
    alike to 0 where they are opposed, flatter than softmax. A factor of the directions cancels, so there is no
    temperature to learn. q.k is not divided by sqrt(K); reads merge with each other alone.

    heads, k_dim, directions: as in `HeadDirections`; the paper takes twice as many as sines and cosines.
    eps: keeps every vector some feature, and so every read a divisor; 0 is the paper's equation.
    unit: divide x by its length, as the paper does.
    redraw: draw anew every so many steps of training, None for never; the paper's takes others at every step (1).
    seed: the first draw comes from it; draws are saved.

    Errors: ValueError for other heads than it was made for. Source: Peng et al., 2021, arXiv:2103.02143, section 3.1
    and appendix A; the kernel: Cho and Saul, 2009, of degree 1.
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
