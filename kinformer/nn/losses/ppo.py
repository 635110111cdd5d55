"""PPO: a loss that makes better actions more probable while the policy stays near the acting one."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped_policy(
    log_p: Float[Tensor, "B T"], before: Float[Tensor, "B T"], advantage: Float[Tensor, "B T"], ratio: float
) -> Float[Tensor, "B T"]:
    """Return the clipped policy loss of each action.

        -min(r A, clip(r, 1 - ratio, 1 + ratio) A), r = exp(log_p - before)

    Choose it for several optimization steps on the same actions.

    log_p: log-probability of each action under the policy that learns, [B T].
    before: log-probability under the policy that acted, [B T].
    advantage: A, how much better than expected the action did, [B T].
    ratio: largest useful distance of r from 1.

    Source: Schulman et al., 2017, arXiv:1707.06347, equation 7.
    """
    r = (log_p - before).exp()
    return -torch.minimum(r * advantage, r.clamp(1 - ratio, 1 + ratio) * advantage)


def advantages(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    following: Float[Tensor, "B T"],
    ends: Bool[Tensor, "B T"],
    discount: float,
    trace: float,
) -> Float[Tensor, "B T"]:
    """Return the generalised advantages of all steps.

        A_t = sum_k (discount trace)^k (r + discount V' - V) at step t + k, up to the end of the episode

    rewards: reward r of each step, [B T].
    values: expected return V of each step, [B T].
    following: expected return V' of the next step, [B T]. It is 0 if an episode ended for good, and the value of the
        last observation if the episode was cut short.
    ends: True if an episode ended at the step, either way, [B T].
    discount: factor of later rewards.
    trace: factor of later terms, lambda in the paper.

    Source: Schulman et al., 2015, arXiv:1506.02438, equation 16.
    """
    apart = rewards + discount * following - values
    advantage, later = torch.zeros_like(apart), torch.zeros_like(apart[:, 0])
    for t in reversed(range(apart.shape[1])):
        later = apart[:, t] + discount * trace * later.where(~ends[:, t], 0.0)
        advantage[:, t] = later
    return advantage
