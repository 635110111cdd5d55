"""ReinforcedLM, ReinforcedMLM: language models with parts that learn discrete choices from a reward."""

import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.layer import Context, Layer, Out
from kinformer.core.loss import CHOICES, masked_mean, penalties_of, token_nll
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.losses.reinforce import Per, Reinforce

__all__ = ["ReinforcedLM", "ReinforcedMLM"]


class RewardedModel(nn.Module):
    """Base class of `ReinforcedLM` and `ReinforcedMLM`, which adds the loss that trains discrete choices.

    loss = NLL + weight * the `Reinforce` loss of all choices whose log-probabilities parts report as "log_p"
    """

    def set_reinforce(self, body: Layer, per: Per, decay: float, weight: float) -> None:
        """Set how the choices of the parts of a body are rewarded; a subclass calls it in its constructor.

        body: layers with parts that make random choices.
        per, decay: arguments of `Reinforce`.
        weight: weight of the `Reinforce` loss.

        Errors: ValueError if no part of the body chooses.
        """
        if CHOICES not in penalties_of(body):
            raise ValueError(
                "no part of the body makes choices that a reward can train; give a body with SAC, or use LM"
            )
        self.reinforce, self.weight = Reinforce(per, decay), check_in_range("weight", weight, 0, math.inf)

    def reward_loss(self, out: Out, targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output, the loss, and its parts "nll" and "choices".

        out: output of the model, with the log-probabilities of the choices in its aux.
        targets: token to predict at each position; -1 for none.
        """
        real, nll_by_token = targets >= 0, token_nll(out.y, targets)
        log_p = sum(value for key, value in out.aux.items() if key.rpartition(".")[2] == CHOICES)
        choices, stats = self.reinforce(log_p, nll_by_token, real)
        nll = masked_mean(nll_by_token, real)
        all_stats = {**out.stats, **{f"reinforce.{name}": value for name, value in stats.items()}}
        return out._replace(stats=all_stats), nll + self.weight * choices, {"nll": nll, "choices": choices}


class ReinforcedLM(RewardedModel, LM):
    """Language model over parts that make random choices, such as `SAC`, trained by REINFORCE.

    loss = NLL + weight * mean of -(R - b) log p

    Choose it for bodies with discrete choices, which have no gradient; choose `LM` for all others. For each token, log
    p is the log-probability of its choices, summed over all parts. R is the log-likelihood of the targets, and b the
    running mean of R. In eval mode, parts take the most likely choice, and the model behaves as an `LM`.

    vocab, d, kwargs: arguments of `LM`.
    body: layers with parts that make discrete choices.
    per, decay: arguments of `Reinforce`.
    weight: weight of the loss of the choices.

    Errors: ValueError for a body without choices, and the errors of `LM`.
    Source: Li et al., 2020, arXiv:2003.09833, section 3.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        per: Per = "row",
        decay: float = 0.9,
        weight: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(vocab, d, body, **kwargs)
        self.set_reinforce(body, per, decay, weight)

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output, the loss, and its parts "nll" and "choices"."""
        return self.reward_loss(call(()), targets)


class ReinforcedMLM(RewardedModel, MLM):
    """Masked language model over parts that make random choices, such as `PublishedSAC`.

    REINFORCE trains the choices as in `ReinforcedLM`. All choices of a row have the same reward: the mean
    log-likelihood of its masked tokens.

    vocab, d, kwargs: arguments of `MLM`.
    body: layers, causal or not; at least one part makes choices.
    decay, weight: arguments of `ReinforcedLM`.

    Errors: ValueError for a body without choices, and the errors of `MLM`.
    """

    def __init__(self, vocab: int, d: int, body: Layer, *, decay: float = 0.9, weight: float = 1.0, **kwargs: Any):
        super().__init__(vocab, d, body, **kwargs)
        self.set_reinforce(body, "row", decay, weight)

    def training_loss(self, out: Out, targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output, the loss, and its parts "nll" and "choices"."""
        return self.reward_loss(out, targets)


def _example() -> ReinforcedLM:
    return ReinforcedLM(11, 16, kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.SAC(1, 4))), per="token")


def _encoder() -> ReinforcedMLM:
    return ReinforcedMLM(11, 16, kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.PublishedSAC(1, 4))))


EXAMPLES = (_example, _encoder)
