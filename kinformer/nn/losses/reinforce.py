"""Reinforce: a loss that trains random discrete choices by their rewards."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_in_range, check_option
from kinformer.core.keyword_hints import KeywordHints

Per = Literal["token", "row"]


class Reinforce(nn.Module, KeywordHints):
    """The REINFORCE loss with a running baseline, for parts of a model that choose at random.

        -(R - b) log p, with the gradient -(R - b) grad log p

    Choose it if no gradient passes through a discrete choice, as in `SAC` (attention that chooses its keys). Here p is
    the probability of the choice. The reward R is the log-likelihood of targets, and the baseline b is the running mean
    of the rewards of earlier steps. The baseline does not change the mean of the gradient and reduces its variance.

    per: reward of a token's choices: "row", the mean log-likelihood of the targets of its row, or "token", the
        log-likelihood of its own target. "token" has less noise but ignores the effect of a choice on later tokens.
    decay: factor of the old running mean in an update, from 0 to 1.

    Errors: ValueError for another `per`, and a decay outside 0 to 1. Source: Williams, 1992, doi:10.1007/BF00992696,
    "Simple statistical gradient-following algorithms for connectionist reinforcement learning"; the reward: Li et al.,
    2020, arXiv:2003.09833; its baseline as a running mean with 0.9 is a choice made here.
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
        """Return the loss per real target, and the sums that `after_step` needs for the baseline.

        The loss is the sum over all choices divided by the number of real targets. The sums are the sum of
        log-likelihoods and their number; outside training there are none.

        log_p: log-probability of each token's choices, 0 for none, [B T]. With per="row", choices of tokens without a
            target count too.
        nll: negative log-likelihood of each target, [B T]; no gradient flows through it.
        real: True for tokens with a target, [B T].
        """
        reward = -nll.detach().where(real, 0.0)
        sums = torch.stack([reward.sum(), real.sum().to(reward.dtype)])
        if self.per == "row":
            reward = reward.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
        # the first step has no baseline, so it learns nothing instead of mostly noise
        better = torch.where(self.steps > 0, reward - self.baseline.to(reward.dtype), 0.0)
        if self.per == "token":
            better = better.where(real, 0.0)
        return (-better * log_p).sum() / real.sum().clamp_min(1), {"reward": sums} if self.training else {}

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Update the baseline, the running mean of rewards, with the rewards of a training step."""
        if "reward" not in stats:
            return
        total, count = stats["reward"]
        reward = (total / count.clamp_min(1)).to(self.baseline.dtype)
        average = self.decay * self.baseline + (1 - self.decay) * reward
        self.baseline.copy_(torch.where(self.steps > 0, average, reward))
        self.steps += 1
