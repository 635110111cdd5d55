"""DeltaUpdate: linear attention in which a key replaces its old value (delta rule)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.state_update import KeyFeatures, LinearState, StateUpdate, multiply


class DeltaUpdate(StateUpdate):
    """State update for linear attention in which a key replaces its old value: the delta rule.

    S_t = S_(t-1) + b_t phi(k_t) (v_t - S_(t-1)^T phi(k_t))^T, y_t = S_t^T phi(q_t), b_t = sigmoid(w.x_t + b)

    Choose it, as `LinearAttention(ELU(), DeltaUpdate())`, if plain sums would mix the values of keys that repeat. Each
    key head has its own rate b_t, made by an extra key projection of the layer. The features phi are divided by the sum
    of their absolute values, as in the paper, so b_t = 1 replaces at most the whole value of a key. The output is not
    divided by a sum of weights, so it has no lse (log-sum-exp) and cannot be merged. The tokens of a piece (a run of
    consecutive tokens) are computed together by a triangular solve.

    Source: Schlag et al., 2021, arXiv:2102.11174, section 4; pieces: Yang et al., 2024, arXiv:2406.06484.
    """

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"rate": ExtraProjection(1)}

    def forward(
        self, sums: LinearState, q: Float[Tensor, "B G N R P F"] | None, new: KeyFeatures, levels: bool
    ) -> tuple[Float[Tensor, "B G N R P W"] | None, None, LinearState]:
        rate = torch.where(new.weight == -torch.inf, 0.0, new.extras["rate"][..., 0].to(new.k.dtype).sigmoid())[
            ..., None
        ]
        k = _normal(new.k)
        # token i writes u_i = b_i (v_i - S_(i-1)^T k_i) = new_value_i - S^T old_key_i, with S the sums before its piece
        solved = rate * torch.cat((new.v, k), -1)
        if k.shape[3] > 1:
            solved = torch.linalg.solve_triangular(
                (rate * (k @ k.mT)).tril(-1), solved, upper=False, unitriangular=True
            )
        new_values, old_keys = solved.split((new.v.shape[-1], k.shape[-1]), -1)
        learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (sums.s, k, solved, q))
        q = None if q is None else _normal(q)
        if k.shape[2:4] == (1, 1) and not learns:
            s = sums.s.addcmul_(k[:, :, 0].mT, new_values[:, :, 0] - old_keys[:, :, 0] @ sums.s)
            return (
                None if q is None else multiply(q, s.unflatten(1, (-1, 1))),
                None,
                LinearState(s, torch.zeros_like(sums.level)),
            )
        states, wrote = [sums.s], []
        for of_v, of_s, k_n in zip(new_values.unbind(2), old_keys.unbind(2), k.unbind(2), strict=True):
            wrote.append(of_v - of_s @ states[-1])
            states.append(states[-1] + k_n.mT @ wrote[-1])
        read = None
        if q is not None:
            inside = multiply(q, k.mT).tril()  # [B G N R P P]
            read = multiply(q, torch.stack(states[:-1], 2)) + multiply(inside, torch.stack(wrote, 2))
        return read, None, LinearState(states[-1], torch.zeros_like(sums.level))


def _normal(phi: Tensor) -> Tensor:
    return phi / phi.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(phi.dtype).tiny)


def _elu() -> LinearAttention:
    return LinearAttention(kf.ELU(), DeltaUpdate(), piece=4)


EXAMPLES = (
    Example(
        _elu,
        breaks={
            "merge": (
                "the update of a key depends on the keys before it, so the updates of parts of the keys cannot be added"
            )
        },
    ),
)
