"""Unit vectors: the scaling of vectors to length 1."""

from jaxtyping import Float
from torch import Tensor

from kinformer.core.autocast import at_least_float32


def unit(x: Float[Tensor, "*n K"], eps: float = 1e-12) -> Float[Tensor, "*n K"]:
    """Return x scaled to length 1, computed in float32 or better.

    x: vectors along the last dimension.
    eps: a small number that is added to the squared length, so that a zero vector stays 0.
    """
    wide = at_least_float32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
