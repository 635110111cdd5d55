"""Decayed: linear attention whose past fades, and in which each token enters whole."""

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
    """S_t = g_t S_(t-1) + phi(k_t) v_t^T, g_t = sigmoid(w.x_t + b), and the sum that divides likewise.

    Choose it where what is recent matters more, and a token that forgets should count no less itself, which with
    `GatedUpdate` it does: there it enters times 1 - g_t. As `LinearAttention(ELU(), Decayed())`. Each key head has a
    gate of its own, a key side of the layer.

    Source: the "gated" aggregation of Lin et al., 2021, arXiv:2106.04554, section 4.2; as in Peng et al., 2021,
    arXiv:2103.02143, but for their factor 1 - g_t.
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
