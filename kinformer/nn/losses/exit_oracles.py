"""Exit oracles: the best exit of each token by the predictions of all exits, for rules to learn."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_in_range
from kinformer.core.loss import token_nll

Logits = Sequence[Float[Tensor, "B T V"]]  # one set per exit, the lowest first


class ExitOracle(ABC):
    """The base of exit oracles, which name the exit with the highest merit after the price of its layers.

        argmax over exits n from 1 of (merit of n at t) - price n

    The lowest of equal exits wins, and no gradient flows through the choice. With a sigma, the merit of token t also
    counts its neighbours: sum_t' exp(-(t - t')^2 / sigma) merit_t'. The sum runs over real targets; if a row has
    several documents, only over the token's own one.

    price: cost of a layer in units of the merit: the lambda that the paper tunes. 0.01 is a choice of this library.
    sigma: reach of the neighbours in squared tokens; 0 counts only the token itself.

    Errors: ValueError for a negative number. Source: Elbayad et al., 2019, arXiv:1910.10073, equations 9 to 17.
    """

    def __init__(self, price: float = 0.01, *, sigma: float = 0.0):
        self.price, self.sigma = (
            check_in_range("price", price, 0, math.inf),
            check_in_range("sigma", sigma, 0, math.inf),
        )

    @abstractmethod
    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        """Return how well each exit predicts each target, [N B T]."""

    @torch.no_grad()
    def __call__(
        self, logits: Logits, targets: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None
    ) -> Int[Tensor, "B T"]:
        """Return the exit of each token, from 0; the exit of padding is arbitrary.

        documents: the index of each token's document, if rows hold several.
        """
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
        """Return one exit for each whole row, from 0, by the sum of its targets' merits."""
        return self._best((self.merit(logits, targets) * (targets >= 0)).sum(-1))

    def _best(self, merit: Float[Tensor, "N *shape"]) -> Int[Tensor, "*shape"]:
        n = torch.arange(len(merit), device=merit.device).view(-1, *[1] * (merit.dim() - 1))
        merit = merit - self.price * (n + 1)
        return torch.where(merit == merit.amax(0), n, len(merit)).amin(0)


class Likelihood(ExitOracle):
    """An oracle that measures an exit by the log-probability of the target, in nats.

    price: as in `ExitOracle`.
    sigma: as in `ExitOracle`.
    """

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([-token_nll(exit_logits, targets) for exit_logits in logits])


class Correctness(ExitOracle):
    """An oracle that gives an exit merit 1 if the target is the most probable token, and 0 otherwise.

    price: as in `ExitOracle`.
    sigma: as in `ExitOracle`.
    """

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([(exit_logits.argmax(-1) == targets).to(torch.float32) for exit_logits in logits])
