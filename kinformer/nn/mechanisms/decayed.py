"""Decayed: update of linear attention in which the past decays and each new token has full weight."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.state_update import DecayUpdate


class Decayed(DecayUpdate):
    """State update with a learned decay of the past and full weight for each new token.

    S_t = g_t S_(t-1) + phi(k_t) v_t^T, g_t = sigmoid(w.x_t + b)

    The sum of weights that divides the output decays in the same way. Choose it, as `LinearAttention(ELU(),
    Decayed())`, if recent tokens matter more. Choose `GatedUpdate` if a token that keeps the past should itself count
    less: there it enters with the factor 1 - g_t. Each key head has its own gate g_t, made by an extra key projection
    of the layer.

    Source: the "gated" aggregation of Lin et al., 2021, arXiv:2106.04554, section 4.2; Peng et al., 2021,
    arXiv:2103.02143.

    Differences: Peng et al. multiply the new token by 1 - g_t.
    """

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"gate": ExtraProjection(1)}

    def logs(
        self, k: Float[Tensor, "B G N P F"], extras: Mapping[str, Float[Tensor, "B G N P n"]]
    ) -> tuple[Float[Tensor, "B G N P"], Float[Tensor, "B G N P"]]:
        return F.logsigmoid(extras["gate"][..., 0].to(k.dtype)), torch.zeros_like(k[..., 0])


def _elu() -> LinearAttention:
    return LinearAttention(kf.ELU(), Decayed(), piece=4)


EXAMPLES = (_elu,)
