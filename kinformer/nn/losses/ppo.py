"""PPO: actions that did better than expected are made likelier, as long as the policy stays near the one that acted."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped_policy(
    log_p: Float[Tensor, "B T"], before: Float[Tensor, "B T"], advantage: Float[Tensor, "B T"], ratio: float
) -> Float[Tensor, "B T"]:
    """-min(r A, clip(r, 1 - ratio, 1 + ratio) A) of each action, r = exp(log_p - before).

    Choose it for several steps on the same actions. log_p: of each action by the policy that learns; before: by the one
    that acted; advantage: how much better than expected it did. Source: Schulman et al., 2017, arXiv:1707.06347,
    equation 7.
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
    """Generalised advantages: sums of (discount trace)^k (r + discount V' - V) of the steps to the episode's end.

    values: what was expected at each step; following: at the step after it, 0 where an episode ended for good, and what
    is expected of the last observation where it was cut short. ends: where the episode ended, either way. Source:
    Schulman et al., 2015, arXiv:1506.02438, equation 16.
    """
    apart = rewards + discount * following - values
    advantage, later = torch.zeros_like(apart), torch.zeros_like(apart[:, 0])
    for t in reversed(range(apart.shape[1])):
        later = apart[:, t] + discount * trace * later.where(~ends[:, t], 0.0)
        advantage[:, t] = later
    return advantage
