"""Vectors: what several parts do with them."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.autocast import at_least_float32


def unit(x: Float[Tensor, "*n K"], eps: float = 1e-12) -> Float[Tensor, "*n K"]:
    """x at length 1, computed in float32 at least; `eps` is added to the squared length, so 0 stays 0."""
    wide = at_least_float32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
