"""PPO: a policy loss that makes good actions more probable but limits the change of the policy."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped_policy(
    log_p: Float[Tensor, "B T"], before: Float[Tensor, "B T"], advantage: Float[Tensor, "B T"], ratio: float
) -> Float[Tensor, "B T"]:
    """Return the clipped policy loss of each action.

        -min(r A, clip(r, 1 - ratio, 1 + ratio) A), r = exp(log_p - before)

    This is the loss of proximal policy optimization (PPO). Choose it for several optimization steps on the same
    recorded actions.

    log_p: log-probability of each action under the policy that learns, [B T].
    before: log-probability under the policy that acted, [B T].
    advantage: A, return of the action minus the expected return, [B T].
    ratio: distance of r from 1 beyond which a further change of the policy does not lower the loss.

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
    """Return the generalised advantage of each step: its estimated return minus the expected return.

        A_t = sum_k (discount trace)^k (r + discount V' - V) at step t + k, up to the end of the episode

    rewards: reward r of each step, [B T].
    values: expected return V of each step, [B T].
    following: expected return V' from the next step on, [B T]. It is 0 if an episode ended for good, and the expected
        return from the last observation if the episode was cut short.
    ends: True if an episode ended or was cut short at the step, [B T].
    discount: factor per step of later rewards, gamma in the paper.
    trace: additional factor per step of later terms, lambda in the paper.

    Source: Schulman et al., 2015, arXiv:1506.02438, equation 16.
    """
    apart = rewards + discount * following - values
    advantage, later = torch.zeros_like(apart), torch.zeros_like(apart[:, 0])
    for t in reversed(range(apart.shape[1])):
        later = apart[:, t] + discount * trace * later.where(~ends[:, t], 0.0)
        advantage[:, t] = later
    return advantage
