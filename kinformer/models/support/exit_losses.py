"""Exits under a model: the loss of all of them and of their rule, and rules that no loss would train."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.layer import Context, Decoding, Layer, Out, add_prefix
from kinformer.core.loss import LEAVING, masked_mean, token_nll
from kinformer.core.model import Batch, Writer, sum_and_count
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.per_exit_classifier import PerExit, of_exit
from kinformer.nn.losses.aligned_exits import Weights, aligned_loss, scale_gradient

Outputs = Literal["shared", "each"]


class ExitOutputs(NamedTuple):
    """What all exits make of a batch, lowest first, what each token is to predict (-1: nothing), and the context."""

    states: Sequence[Float[Tensor, "B T D"]]
    logits: Sequence[Float[Tensor, "B T V"]]
    targets: Int[Tensor, "B T"]
    ctx: Context


class ManyExits(Writer):
    """What models over an `EarlyExit` share, before the class of the model that they are without one.

    loss = L_dec + alpha * L_exit. Aligned, L_dec = sum_n w_n NLL_n / sum_n w_n; where the exits have a `chance`, it is
    in training the mean NLL of `paths` readings whose exits are drawn. L_exit is what the rule learns by, where it
    does, from a reading in which nobody leaves. `judge` also counts the layers that a token takes, as "layers".
    """

    head: Any
    embedding: nn.Embedding
    smoothing: float = 0.0

    @property
    def exits(self) -> EarlyExit:
        """The layers that tokens leave."""
        raise NotImplementedError

    def set_training(self, weights: Weights, alpha: float, paths: int, outputs: Outputs) -> None:
        """How all exits are trained, and what reads them."""
        self.weights, self.alpha = (
            check_option("weights", weights, Weights),
            check_in_range("alpha", alpha, 0, math.inf),
        )
        self.paths, count = check_at_least("paths", paths, 1), len(self.exits.layers)
        if check_option("outputs", outputs, Outputs) == "each":
            if self.head.weight is self.embedding.weight:
                raise ValueError("outputs='each' is a matrix for each exit, none of them the embedding; give tie=False")
            head = self.head
            earlier_heads = [type(head)(head.in_features, head.out_features, bias=False) for _ in range(count - 1)]
            self.head = PerExit([*earlier_heads, head])

    def context(self, ctx: Context) -> Context:
        """The context that the layers get: of a text that is read, the longest output is a row of the training."""
        ctx = super().context(ctx)  # type: ignore[misc]
        if ctx.decoding is not None or self.trained_length is None:
            return ctx
        return ctx.replace(decoding=Decoding(ctx.position_ids, self.trained_length))

    def scores(self, out: Out, last: bool) -> Tensor:
        """Each token's by the classifier of its exit."""
        if not isinstance(self.head, PerExit):
            return super().scores(out, last)  # type: ignore[misc]
        at = slice(-1 if last else 0, None)
        return self.head(out.y[:, at], out.aux["exit"][:, at])

    def refuse_untrained(self, part: Layer) -> None:
        """ValueError for a rule of exits within the layers, or in an encoder, which this loss would not train."""
        for layer in self.exits.layers if part is self.exits else [part]:
            refuse_rules(self, layer)

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading in which nobody leaves, what all its exits and the rule cost, and the parts of that."""
        body, real = self.exits, targets >= 0
        mixed = self.training and body.chance is not None
        readings = [call(()) for _ in range(self.paths)] if mixed else []
        if mixed and readings[0].state is not None:
            raise ValueError("mixed training reads a row several times and carries no state; train on rows without one")
        if mixed and not any(True for _ in body.rule.parameters()):
            return self._mean_reading(readings, targets)
        out, states, logits = self._read_every_exit(call)
        if mixed:
            out, loss, parts = self._mean_reading(readings, targets)
        else:
            scaled = logits
            if self.training:
                scaled = [
                    scale_gradient(exit_logits, gamma) for exit_logits, gamma in zip(logits, body.gammas, strict=True)
                ]
            loss, count = aligned_loss(scaled, targets, self.weights, self.smoothing)
            loss = loss / count.clamp_min(1)
            parts = {"nll": masked_mean(token_nll(out.y, targets), real), "exits": loss}
        learned = body.rule.loss(states, logits, targets, ctx)
        if learned is not None:
            parts[LEAVING] = masked_mean(learned, real)
            loss = loss + self.alpha * parts[LEAVING]
        stats = add_prefix("rule", body.rule.stats(logits, targets)) if self.training else {}
        return out._replace(stats={**out.stats, **stats}), loss, parts

    @abstractmethod
    def every_exit(self, batch: Batch) -> ExitOutputs:
        """What each exit makes of a batch with nobody having left."""

    def _read_every_exit(self, call: Callable[[tuple[str, ...]], Out]) -> tuple[Out, list[Tensor], list[Tensor]]:
        """A reading in which nobody leaves, and the states and logits of all exits."""
        body = self.exits
        names = tuple(str(n) for n in range(len(body.layers)))
        out = call(names)
        states = [out.taps[name] for name in names]
        heads = [of_exit(self.head, n) for n in range(len(states) - 1)]
        logits = [head(norm(h)) for head, norm, h in zip(heads, body.heads, states, strict=False)] + [out.y]
        return out, states, logits

    def _mean_reading(self, readings: list[Out], targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """The first of the readings with the means of their aux, and their mean loss."""
        losses = [masked_mean(token_nll(out.y, targets, self.smoothing), targets >= 0) for out in readings]
        nll = torch.stack([masked_mean(token_nll(out.y, targets), targets >= 0) for out in readings]).mean()
        aux = {name: torch.stack([out.aux[name] for out in readings]).mean(0) for name in readings[0].aux}
        loss = torch.stack(losses).mean()
        return readings[0]._replace(aux=aux), loss, {"nll": nll, "exits": loss}

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
        """The measures of a reading, over all targets, and the layers."""
        return {**super().metric_sums(out, targets), "layers": sum_and_count(out.aux["exit"], targets >= 0)}  # type: ignore[misc]


def refuse_rules(model: nn.Module, body: Layer) -> None:
    """ValueError where an `EarlyExit` in the body has a rule that learns: the model's loss would leave it as it began.

    A rule whose parameters are frozen may decide anywhere.
    """
    for part in body.modules():
        if isinstance(part, EarlyExit) and any(p.requires_grad for p in part.rule.parameters()):
            name, rule = type(model).__name__, type(part.rule).__name__
            over = {"LM": "MultiExit", "Seq2Seq": "MultiExitSeq2Seq"}.get(name, "MultiExit")
            raise ValueError(f"{name} would train nothing of {rule}, the rule of its EarlyExit; use {over} over it")
