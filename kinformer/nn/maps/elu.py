"""ELU: elu(x) + 1, the simplest positive features."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from kinformer.core.feature_map import FeatureMap
from kinformer.core.function_transforms import is_transformed


class ELU(FeatureMap):
    """phi(x) = elu(x) + 1: x + 1 above 0, exp(x) below. The plain linear Transformer: no parameters, no randomness.

    Its kernel is its own, not an estimate of exp(q.k), and q.k is not divided by sqrt(K): reads of it merge with each
    other alone. Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 7.
    """

    by_vector = True

    def features(self, k_dim: int) -> int:
        return k_dim

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        # exp and not elu + 1, which rounds to 0 from -17 on in float32; nor would the product of two at -37 be above 0
        maximum = x.detach().amax(-1).clamp_max(0)
        if torch.compiler.is_compiling() or is_transformed():
            above = x.relu()
            return (x - above - maximum[..., None]).exp() + above, maximum  # where some x is above 0, maximum is 0
        return ELUFeatures.apply(x, maximum), maximum


class ELUFeatures(torch.autograd.Function):
    """The same, keeping for its backward the features alone, which are kept anyway."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "*n K"], maximum: Float[Tensor, "*n"]) -> Float[Tensor, "*n K"]:
        phi = x.clamp_max(0).sub_(maximum[..., None]).exp_().add_(x.clamp_min(0))
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (phi,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return phi.clamp_max(1) * gradient, None  # x + 1 above 0 learns as x does, what exp gives is below 1


EXAMPLES = (lambda: ELU(),)
