"""Losses for models with exits, and the check that refuses exit rules without a loss."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.layer import Context, Decoding, Layer, Out
from kinformer.core.loss import LEAVING, masked_mean, token_nll
from kinformer.core.model import Batch, Writer, sum_and_count
from kinformer.core.sublayer_names import add_prefix
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.per_exit_classifier import PerExit, of_exit
from kinformer.nn.losses.aligned_exits import Weights, aligned_loss, scale_gradient

Outputs = Literal["shared", "each"]


class ExitOutputs(NamedTuple):
    """Outputs of all exits of a model with early exits for a batch, the lowest exit first.

    states: hidden states at each exit.
    logits: logits at each exit.
    targets: token to predict at each position; -1 for none.
    ctx: context of the tokens.
    """

    states: Sequence[Float[Tensor, "B T D"]]
    logits: Sequence[Float[Tensor, "B T V"]]
    targets: Int[Tensor, "B T"]
    ctx: Context


class ManyExits(Writer):
    """Base class (mixin) of models over an `EarlyExit`, layers that tokens can leave early.

    A subclass also inherits from the class of the model without exits, which it lists after this one, and defines
    `every_exit`.

    loss = L_dec + alpha * L_exit

    NLL_n is the loss of the predictions at exit n. In aligned training, L_dec = sum_n w_n NLL_n / sum_n w_n. If the
    exits have a `chance` (a rule of random exits), training is mixed: L_dec is the mean NLL of `paths` forward
    passes with random exits. L_exit is the loss of the exit rule, if it has parameters, from a pass in which no token
    exits. `judge` also reports the mean number of layers per token, as "layers".
    """

    head: Any
    embedding: nn.Embedding
    smoothing: float = 0.0

    @property
    def exits(self) -> EarlyExit:
        """Layers with early exits; a subclass supplies them."""
        raise NotImplementedError

    def set_training(self, weights: Weights, alpha: float, paths: int, outputs: Outputs) -> None:
        """Set how the exits are trained, and which heads predict at them.

        weights, alpha, paths, outputs: arguments of `MultiExit`.

        Errors: ValueError for invalid values, and for outputs="each" with a tied head.
        """
        self.weights, self.alpha = (
            check_option("weights", weights, Weights),
            check_in_range("alpha", alpha, 0, math.inf),
        )
        self.paths, count = check_at_least("paths", paths, 1), len(self.exits.layers)
        if check_option("outputs", outputs, Outputs) == "each":
            if self.head.weight is self.embedding.weight:
                raise ValueError(
                    "outputs='each' has a head for each exit, which cannot be tied to the embedding; give tie=False"
                )
            earlier_heads = [copy.deepcopy(self.head) for _ in range(count - 1)]
            for head in earlier_heads:
                head.reset_parameters()
            self.head = PerExit([*earlier_heads, self.head])

    def context(self, ctx: Context) -> Context:
        """Return the context for the layers, with the number of output tokens that exit rules need.

        During generation the caller gives this number. For other texts it is the length of a training row.
        """
        ctx = super().context(ctx)  # type: ignore[misc]
        if ctx.decoding is not None or self.trained_length is None:
            return ctx
        return ctx.replace(decoding=Decoding(ctx.position_ids, self.trained_length))

    def scores(self, out: Out, last: bool) -> Tensor:
        """Return the logits of each token, computed by the head of its exit."""
        if not isinstance(self.head, PerExit):
            return super().scores(out, last)  # type: ignore[misc]
        at = slice(-1 if last else 0, None)
        return self.head(out.y[:, at], out.aux["exit"][:, at])

    def refuse_untrained(self, part: Layer) -> None:
        """Raise ValueError for a trainable exit rule inside the layers or in an encoder.

        The loss of this model does not train such a rule.

        part: layers to check.
        """
        for layer in self.exits.layers if part is self.exits else [part]:
            refuse_rules(self, layer)

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return an output of the model, the loss of all exits and of the exit rule, and its parts.

        The output is from a pass in which no token exits, or in mixed training from the first pass with random exits.

        call: function that takes names of hidden states (taps) and returns the model's output with them.
        targets: token to predict at each position; -1 for none.
        ctx: context of the tokens.
        progress: progress of the training, from 0 to 1.
        """
        body, real = self.exits, targets >= 0
        mixed = self.training and body.chance is not None
        readings = [call(()) for _ in range(self.paths)] if mixed else []
        if mixed and readings[0].state is not None:
            raise ValueError(
                "mixed training reads each row several times and cannot carry a state; train without a state"
            )
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
        """Return the outputs of all exits for a batch, computed without any token exiting."""

    def _read_every_exit(self, call: Callable[[tuple[str, ...]], Out]) -> tuple[Out, list[Tensor], list[Tensor]]:
        """Return the output of a pass in which no token exits, with the states and logits of all exits."""
        body = self.exits
        names = tuple(str(n) for n in range(len(body.layers)))
        out = call(names)
        states = [out.taps[name] for name in names]
        heads = [of_exit(self.head, n) for n in range(len(states) - 1)]
        logits = [head(norm(h)) for head, norm, h in zip(heads, body.heads, states, strict=False)] + [out.y]
        return out, states, logits

    def _mean_reading(self, readings: list[Out], targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the first output with the mean aux of all passes, the mean loss, and its parts."""
        losses = [masked_mean(token_nll(out.y, targets, self.smoothing), targets >= 0) for out in readings]
        nll = torch.stack([masked_mean(token_nll(out.y, targets), targets >= 0) for out in readings]).mean()
        aux = {name: torch.stack([out.aux[name] for out in readings]).mean(0) for name in readings[0].aux}
        loss = torch.stack(losses).mean()
        return readings[0]._replace(aux=aux), loss, {"nll": nll, "exits": loss}

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the sums for the metric over all targets, and for the number of layers per token.

        out: output of the model.
        targets: token to predict at each position; -1 for none.
        """
        return {**super().metric_sums(out, targets), "layers": sum_and_count(out.aux["exit"], targets >= 0)}  # type: ignore[misc]


def refuse_rules(model: nn.Module, body: Layer) -> None:
    """Raise ValueError for an `EarlyExit` with a trainable exit rule, which the loss would not train.

    An exit rule with frozen parameters is allowed.

    model: model that computes the loss.
    body: layers to check.
    """
    for part in body.modules():
        if isinstance(part, EarlyExit) and any(p.requires_grad for p in part.rule.parameters()):
            name, rule = type(model).__name__, type(part.rule).__name__
            over = {"LM": "MultiExit", "Seq2Seq": "MultiExitSeq2Seq"}.get(name, "MultiExit")
            raise ValueError(f"{name} does not train {rule}, the exit rule of its EarlyExit; use {over} instead")
