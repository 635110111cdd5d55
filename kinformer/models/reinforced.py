"""Reinforced: a language model whose body makes hard choices, which learn from how well it predicts."""

import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import within
from kinformer.core.layer import Context, Layer, Out
from kinformer.core.loss import CHOICES, mean, penalties_of, surprise
from kinformer.losses.reinforce import Per, Reinforce
from kinformer.models.lm import LM


class Reinforced(LM):
    """An `LM` over parts that choose by chance, such as `SAC`: loss = NLL + weight * mean of -(R - b) log p.

    log p is the sum of what all parts report as aux "log_p" for a token. In eval mode parts choose what is likeliest,
    and the model is an LM.

    per, decay: of the `Reinforce`.
    weight: of what the choices learn by.

    Others: those of `LM`. Errors: ValueError for a body in which nothing is chosen; the LM's. Source: Li et al., 2020,
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
        **others: Any,
    ):
        super().__init__(vocab, d, body, **others)
        if CHOICES not in penalties_of(body):
            raise ValueError("no part of the body chooses anything that a reward could teach; give a SAC, or use LM")
        self.reinforce, self.weight = Reinforce(per, decay), within("weight", weight, 0, math.inf)

    def learned(
        self, call: Callable[[tuple[str, ...]], Out], wanted: Int[Tensor, "B T"], ctx: Context
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading, its NLL with what its choices learn by, and both apart."""
        out, real = call(()), wanted >= 0
        each = surprise(out.y, wanted)
        log_p = sum(value for key, value in out.aux.items() if key.rpartition(".")[2] == CHOICES)
        choices, stats = self.reinforce(log_p, each, real)
        nll = mean(each, real)
        told = {**out.stats, **{f"reinforce.{name}": value for name, value in stats.items()}}
        return out._replace(stats=told), nll + self.weight * choices, {"nll": nll, "choices": choices}


def _example() -> Reinforced:
    from kinformer.attention import Attention
    from kinformer.blocks.pre_norm import PreNorm
    from kinformer.mechanisms.sac import SAC
    from kinformer.projections.qkv import QKV

    return Reinforced(11, 16, PreNorm(Attention(QKV(16, 2), SAC(1, 4))), per="token")


EXAMPLES = (_example,)
