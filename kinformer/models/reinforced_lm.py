"""Reinforced: a language model whose body makes hard choices, which learn from how well it predicts."""

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
    """What both models share: loss = NLL + weight * the `Reinforce` of what all parts report as aux "log_p"."""

    def set_reinforce(self, body: Layer, per: Per, decay: float, weight: float) -> None:
        """How the choices within a body are rewarded; ValueError where there are none."""
        if CHOICES not in penalties_of(body):
            raise ValueError("no part of the body chooses anything that a reward could teach; give a SAC, or use LM")
        self.reinforce, self.weight = Reinforce(per, decay), check_in_range("weight", weight, 0, math.inf)

    def reward_loss(self, out: Out, targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading, its NLL with what its choices learn by, and both apart."""
        real, nll_by_token = targets >= 0, token_nll(out.y, targets)
        log_p = sum(value for key, value in out.aux.items() if key.rpartition(".")[2] == CHOICES)
        choices, stats = self.reinforce(log_p, nll_by_token, real)
        nll = masked_mean(nll_by_token, real)
        all_stats = {**out.stats, **{f"reinforce.{name}": value for name, value in stats.items()}}
        return out._replace(stats=all_stats), nll + self.weight * choices, {"nll": nll, "choices": choices}


class ReinforcedLM(RewardedModel, LM):
    """An `LM` over parts that choose by chance, such as `SAC`: loss = NLL + weight * mean of -(R - b) log p.

    log p is the sum of what all parts report as aux "log_p" for a token. In eval mode parts choose what is likeliest,
    and the model is an LM.

    per, decay: of the `Reinforce`.
    weight: of what the choices learn by.

    kwargs: those of `LM`. Errors: ValueError for a body in which nothing is chosen; the LM's. Source: Li et al., 2020,
    arXiv:2003.09833, section 3.
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
        """A reading, its NLL with what its choices learn by, and both apart."""
        return self.reward_loss(call(()), targets)


class ReinforcedMLM(RewardedModel, MLM):
    """An `MLM` over parts that choose by chance, such as `PublishedSAC`; the reward is of the row.

    decay, weight: as in `ReinforcedLM`. kwargs: those of `MLM`. Errors: as there.
    """

    def __init__(self, vocab: int, d: int, body: Layer, *, decay: float = 0.9, weight: float = 1.0, **kwargs: Any):
        super().__init__(vocab, d, body, **kwargs)
        self.set_reinforce(body, "row", decay, weight)

    def training_loss(self, out: Out, targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading, its NLL with what its choices learn by, and both apart."""
        return self.reward_loss(out, targets)


def _example() -> ReinforcedLM:
    return ReinforcedLM(11, 16, kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.SAC(1, 4))), per="token")


def _encoder() -> ReinforcedMLM:
    return ReinforcedMLM(11, 16, kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.PublishedSAC(1, 4))))


EXAMPLES = (_example, _encoder)
