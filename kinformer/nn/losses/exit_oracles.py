"""Exit oracles: at which exit a token had better left, once all exits have predicted: what an exit rule learns from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_in_range
from kinformer.core.loss import token_nll

Logits = Sequence[Float[Tensor, "B T V"]]  # of the exits, the lowest first


class ExitOracle(ABC):
    """argmax over exits n from 1 of (merit of n at t) - price n; of equal ones the lowest. No gradient flows through.

    The merit of a token counts its neighbours too: sum_t' exp(-(t - t')^2 / sigma) merit_t', over real targets of its
    own document where a row has several.

    price: what a layer costs, in units of the merit: the lambda that the paper tunes. 0.01 is a choice of this library.
    sigma: how far neighbours count, in squared tokens; 0 counts the token alone.

    Errors: ValueError for a negative number. Source: Elbayad et al., 2019, arXiv:1910.10073, equations 9 to 17.
    """

    def __init__(self, price: float = 0.01, *, sigma: float = 0.0):
        self.price, self.sigma = (
            check_in_range("price", price, 0, math.inf),
            check_in_range("sigma", sigma, 0, math.inf),
        )

    @abstractmethod
    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        """How well each exit predicts each target."""

    @torch.no_grad()
    def __call__(
        self, logits: Logits, targets: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None
    ) -> Int[Tensor, "B T"]:
        """The exit of each token, from 0; padding has some exit too. `documents` says which one each token is of."""
        merit = self.merit(logits, targets) * (targets >= 0)
        if self.sigma:
            at = torch.arange(targets.shape[1], device=targets.device, dtype=merit.dtype)
            near = torch.exp(-((at[:, None] - at) ** 2) / self.sigma)
            if documents is not None:
                near = near * (documents[:, :, None] == documents[:, None])
            with disable_autocast(merit):
                merit = (merit[:, :, None] @ near)[:, :, 0]
        return self._best(merit)

    @torch.no_grad()
    def of_rows(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
        """The one exit of each whole row, from 0: by the sum of its targets' merits."""
        return self._best((self.merit(logits, targets) * (targets >= 0)).sum(-1))

    def _best(self, merit: Float[Tensor, "N *shape"]) -> Int[Tensor, "*shape"]:
        n = torch.arange(len(merit), device=merit.device).view(-1, *[1] * (merit.dim() - 1))
        merit = merit - self.price * (n + 1)
        return torch.where(merit == merit.amax(0), n, len(merit)).amin(0)


class Likelihood(ExitOracle):
    """By the log-probability of the target, in nats."""

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([-token_nll(exit_logits, targets) for exit_logits in logits])


class Correctness(ExitOracle):
    """By whether the target is the likeliest token: 1 or 0."""

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([(exit_logits.argmax(-1) == targets).to(torch.float32) for exit_logits in logits])
