"""Delta: linear attention whose sums forget what a key held before they write what it holds now."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.example import Example
from kinformer.core.heads import Side, Sizes
from kinformer.mechanisms.linear import LinearAttention
from kinformer.mechanisms.support.update import Entering, Sums, Update, times


class Delta(Update):
    """S_t = S_(t-1) + b_t phi(k_t) (v_t - S_(t-1)^T phi(k_t))^T, y_t = S_t^T phi(q_t), b_t = sigmoid(w.x_t + b).

    A key that comes again replaces its value in place of adding to it: choose it where sums would mix what must be
    told apart, as `LinearAttention(ELU(), Delta())`. Each key head has a rate b of its own, a key side of the layer.
    phi is divided by the sum of its sizes, as in the paper, so that b = 1 rewrites a key wholly at most; the sums are
    what is read, divided by nothing, so there is no lse. Tokens of a piece are solved for together.

    Source: Schlag et al., 2021, arXiv:2102.11174, section 4; pieces: Yang et al., 2024, arXiv:2406.06484.
    """

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return {"rate": Side(1)}

    def forward(
        self, sums: Sums, q: Float[Tensor, "B G R T F"] | None, new: Entering, levels: bool
    ) -> tuple[Float[Tensor, "B G R T W"] | None, None, Sums]:
        rate = torch.where(new.weight == -torch.inf, 0.0, new.sides["rate"][..., 0].to(new.k.dtype).sigmoid())
        k = _normal(new.k)
        # u_i = b_i (v_i - S_(i-1)^T k_i): what token i writes, and every later one of the piece must know
        told = rate[..., None] * (new.v - k @ sums.s)  # [B G T W]
        known = (rate[..., None] * (k @ k.mT)).tril(-1)  # [B G T T]
        u = torch.linalg.solve_triangular(known, told, upper=False, unitriangular=True)
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in (sums.s, k, u))
        read = None
        if q is not None:
            q = _normal(q)
            inside = times(q, k.mT).tril()  # [B G R T T]
            read = times(q, sums.s) + times(inside, u)
        s = sums.s + k.mT @ u if learns or k.shape[2] > 1 else sums.s.addcmul_(k.mT, u)
        return read, None, Sums(s, torch.zeros_like(sums.level))


def _normal(phi: Tensor) -> Tensor:
    return phi / phi.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(phi.dtype).tiny)


def _elu() -> LinearAttention:
    from kinformer.maps.elu import ELU

    return LinearAttention(ELU(), Delta(), piece=4)


EXAMPLES = (
    Example(_elu, breaks={"merge": "what a key writes depends on the keys before it, so parts of them do not add up"}),
)
