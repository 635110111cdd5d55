"""Exits under a model: the loss of all of them and of their rule, and rules that no loss would train."""

import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from kinformer.core.checks import one_of, within
from kinformer.core.layer import Context, Layer, Out
from kinformer.core.loss import mean, surprise
from kinformer.core.model import Writer, total
from kinformer.depth.early_exit import EarlyExit
from kinformer.losses.aligned import Weights, aligned


class ManyExits(Writer):
    """What models over an `EarlyExit` share, before the class of the model that they are without one.

    loss = sum_n w_n NLL_n / sum_n w_n + alpha * L_exit. All exits are read by the one head, L_exit is what the rule
    learns by, where it does. `judge` also counts the layers that a token takes, as "layers".
    """

    head: Any
    smoothing: float = 0.0

    @property
    def exits(self) -> EarlyExit:
        """The layers that tokens leave."""
        raise NotImplementedError

    def train_by(self, weights: Weights, alpha: float) -> None:
        """How all exits are trained."""
        self.weights, self.alpha = one_of("weights", weights, Weights), within("alpha", alpha, 0, math.inf)

    def refuse_untrained(self, part: Layer) -> None:
        """ValueError for a rule of exits within the layers, or in an encoder, which this loss would not train."""
        for layer in self.exits.layers if part is self.exits else [part]:
            refuse_rules(self, layer)

    def learned(
        self, call: Callable[[tuple[str, ...]], Out], wanted: Int[Tensor, "B T"], ctx: Context
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading in which nobody leaves, what all its exits and the rule cost, and the parts of that."""
        names, real = tuple(str(n) for n in range(len(self.exits.layers))), wanted >= 0
        out = call(names)
        states = [out.taps[name] for name in names]
        logits = [self.head(norm(h)) for norm, h in zip(self.exits.heads[:-1], states[:-1], strict=True)] + [out.y]
        loss, count = aligned(logits, wanted, self.weights, self.smoothing)
        loss = loss / count.clamp_min(1)
        parts = {"nll": mean(surprise(out.y, wanted), real), "exits": loss}
        learned = self.exits.rule.loss(states, logits, wanted, ctx)
        if learned is not None:
            parts["leaving"] = mean(learned, real)
            loss = loss + self.alpha * parts["leaving"]
        return out, loss, parts

    def measured(self, out: Out, wanted: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
        """The measures of a reading, over all targets, and the layers."""
        return {**super().measured(out, wanted), "layers": total(out.aux["exit"], wanted >= 0)}  # type: ignore[misc]


def refuse_rules(model: nn.Module, body: Layer) -> None:
    """ValueError where an `EarlyExit` in the body has a rule that learns: the model's loss would leave it as it began.

    A rule whose parameters are frozen may decide anywhere.
    """
    for part in body.modules():
        if isinstance(part, EarlyExit) and any(p.requires_grad for p in part.rule.parameters()):
            name, rule = type(model).__name__, type(part.rule).__name__
            over = {"LM": "MultiExit", "Seq2Seq": "MultiExitSeq2Seq"}.get(name, "MultiExit")
            raise ValueError(f"{name} would train nothing of {rule}, the rule of its EarlyExit; use {over} over it")
