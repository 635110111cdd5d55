"""Exit oracles: they name the exit of each token, from the targets, that exit rules learn to choose."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_in_range
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.loss import token_nll

Logits = Sequence[Float[Tensor, "B T V"]]  # one set per exit, the lowest first


class ExitOracle(KeywordHints, ABC):
    """The base class of exit oracles, which name the exit with the highest merit minus price.

    argmax over exits n from 1 of (merit of n at t) - price n

    Exit rules learn from these exits after which layer a token should leave. The merit says how well an exit predicts
    the target; subclasses implement `merit`. If several exits have the same highest result, the lowest is named. No
    gradient flows through the choice. With a sigma, the merit of token t also counts its neighbours: sum_t' exp(-(t -
    t')^2 / sigma) merit_t'. The sum runs over real targets; if a row has several documents, only over the document of
    t.

    price: merit that each layer must gain to be used: the lambda that the paper tunes. 0.01 is a choice of this
        library.
    sigma: width of the weights of neighbours, in squared tokens; 0 counts only the token itself.

    Errors: ValueError for a negative number. Source: Elbayad et al., 2019, arXiv:1910.10073, equations 9 to 17.
    """

    def __init__(self, price: float = 0.01, *, sigma: float = 0.0):
        self.price, self.sigma = (
            check_in_range("price", price, 0, math.inf),
            check_in_range("sigma", sigma, 0, math.inf),
        )

    @abstractmethod
    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        """Return how well each of the N exits predicts each target, [N B T]; higher is better."""

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
        """Return one exit for each whole row, counted from 0, by the sum of the merits of its targets."""
        return self._best((self.merit(logits, targets) * (targets >= 0)).sum(-1))

    def _best(self, merit: Float[Tensor, "N *shape"]) -> Int[Tensor, "*shape"]:
        n = torch.arange(len(merit), device=merit.device).view(-1, *[1] * (merit.dim() - 1))
        merit = merit - self.price * (n + 1)
        return torch.where(merit == merit.amax(0), n, len(merit)).amin(0)


class Likelihood(ExitOracle):
    """An exit oracle whose merit of an exit is the log-probability of the target there, in nats.

    price: as in `ExitOracle`.
    sigma: as in `ExitOracle`.
    """

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([-token_nll(exit_logits, targets) for exit_logits in logits])


class Correctness(ExitOracle):
    """An exit oracle whose merit of an exit is 1 if it predicts the target as most probable, else 0.

    price: as in `ExitOracle`.
    sigma: as in `ExitOracle`.
    """

    def merit(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "N B T"]:
        return torch.stack([(exit_logits.argmax(-1) == targets).to(torch.float32) for exit_logits in logits])
