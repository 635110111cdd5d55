"""ELU: the feature map elu(x) + 1 of linear attention, positive and without parameters."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from kinformer.core.feature_map import FeatureMap
from kinformer.core.function_transforms import is_transformed


class ELU(FeatureMap):
    """Feature map of the first linear Transformer: positive, without parameters and without randomness.

    phi(x) = elu(x) + 1, which is x + 1 for x > 0 and exp(x) otherwise

    Choose it as the simplest map, if phi(q).phi(k) need not estimate exp(q.k). The product q.k is not divided by
    sqrt(K). Attention over one set of keys can be merged with attention over another only if both use this map.

    Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 7.
    """

    by_vector = True

    def features(self, k_dim: int) -> int:
        return k_dim

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        # exp instead of elu + 1, which rounds to 0 below -17 in float32 and below -37 in float64;
        # the scale exp(maximum) is separate, so that products of small features do not underflow
        maximum = x.detach().amax(-1).clamp_max(0)
        if torch.compiler.is_compiling() or is_transformed():
            above = x.relu()
            return (x - above - maximum[..., None]).exp() + above, maximum  # maximum is 0 if any x is above 0
        return ELUFeatures.apply(x, maximum), maximum


class ELUFeatures(torch.autograd.Function):
    """The features of `ELU` as an autograd function; its backward pass needs only the features, not x."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "*n K"], maximum: Float[Tensor, "*n"]) -> Float[Tensor, "*n K"]:
        phi = x.clamp_max(0).sub_(maximum[..., None]).exp_().add_(x.clamp_min(0))
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (phi,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return phi.clamp_max(1) * gradient, None  # the derivative is 1 if x > 0, else phi


EXAMPLES = (lambda: ELU(),)
