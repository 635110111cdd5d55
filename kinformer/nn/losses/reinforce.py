"""Reinforce: the loss by which hard choices learn from what came of them."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_in_range, check_option

Per = Literal["token", "row"]


class Reinforce(nn.Module):
    """-(R - b) log p of what was chosen for each token: its gradient is REINFORCE's, -(R - b) grad log p.

    Choose it where a part chooses by chance and no gradient goes through the choice, as `SAC` does. The reward R is the
    log-likelihood of targets, b the running mean of the rewards of earlier steps: it takes nothing off the mean of the
    gradient and much off its variance.

    per: whose log-likelihood is the reward of a token's choices: "row", the mean over the targets of its row, or
        "token", that of its own target, which has less noise and does not see what later tokens gain.
    decay: of the running mean.

    Errors: ValueError for another `per`, and a decay outside 0 to 1. Source: Williams, 1992, "Simple statistical
    gradient-following algorithms for connectionist reinforcement learning"; the reward: Li et al., 2020,
    arXiv:2003.09833; its baseline as a running mean with 0.9 is a choice made here.
    """

    baseline: Float[Tensor, ""]
    steps: Int[Tensor, ""]

    def __init__(self, per: Per = "row", decay: float = 0.9):
        super().__init__()
        self.per, self.decay = check_option("per", per, Per), check_in_range("decay", decay, 0, 1)
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(
        self, log_p: Float[Tensor, "B T"], nll: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, ""], Mapping[str, Tensor]]:
        """The sum over choices for each real target, and for `after_step` the sum of log-likelihoods and their number.

        log_p: of what was chosen for each token, 0 for none. By "row" tokens without a target count too.
        nll: the loss of each target, which is not differentiated.
        real: where there is a target.
        """
        reward = -nll.detach().where(real, 0.0)
        sums = torch.stack([reward.sum(), real.sum().to(reward.dtype)])
        if self.per == "row":
            reward = reward.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
        # before there is a mean of earlier rewards, nothing is learned rather than much of noise
        better = torch.where(self.steps > 0, reward - self.baseline.to(reward.dtype), 0.0)
        if self.per == "token":
            better = better.where(real, 0.0)
        return (-better * log_p).sum() / real.sum().clamp_min(1), {"reward": sums} if self.training else {}

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Move the running mean by the rewards of a step."""
        if "reward" not in stats:
            return
        total, count = stats["reward"]
        reward = (total / count.clamp_min(1)).to(self.baseline.dtype)
        average = self.decay * self.baseline + (1 - self.decay) * reward
        self.baseline.copy_(torch.where(self.steps > 0, average, reward))
        self.steps += 1
