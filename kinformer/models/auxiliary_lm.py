"""AuxiliaryLM: a language model that, while it trains, also predicts from lower layers and further ahead."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_at_least, check_flag, check_in_range, check_option, check_part, check_unused
from kinformer.core.layer import Context, Out
from kinformer.core.loss import Loss, masked_mean, token_nll
from kinformer.core.token_positions import NumberedState
from kinformer.models.lm import LM
from kinformer.models.support.text_model import Tokens, next_tokens
from kinformer.nn.depth.stack import Stack
from kinformer.nn.losses.multi_step_loss import (
    LowerSchedule,
    last_targets,
    layer_weights,
    multi_step_loss,
    targets_of_steps,
)


class AuxiliaryLM(LM):
    """An `LM` over a `Stack` whose layers beneath the last predict too, the lowest first to stop, and further tokens.

    loss = L_n + sum of w_l L_l over lower layers l, by `layer_weights`; L = CE(token 1 ahead) + weight sum_k CE(token
    k ahead). Choose it for stacks too deep to learn from the last layer alone; choose `MultiExit` if lower layers must
    answer as well. It writes as an LM does: the heads of lower layers and of further tokens serve training alone, where
    each costs as much as the head. All are means over the same number of targets, those one token ahead, so that a
    batch may be cut.

    body: a `Stack`; its last norm, if any, stands before every head.
    targets: how many tokens ahead are predicted, by a head each.
    weight: of every further one.
    lower: lower layers predict.
    lower_schedule: how the loss weights of lower layers fall during training: "step" or "linear".
    shared: they do so by the heads of the last layer, in place of heads of their own.
    everywhere: True predicts at every position. False predicts only at the last position of each row or document, as
        was usual before the paper; a further token at the last position that has one.

    kwargs: those of `LM`. Errors: ValueError for a body that is no Stack, no targets, and shared heads that no lower
    layer has; the LM's. Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Auxiliary losses".
    """

    body: Stack
    tops: ClassVar[tuple[str, ...]] = ("further", "beneath")

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Stack,
        *,
        targets: int = 2,
        weight: float = 0.5,
        lower: bool = True,
        lower_schedule: LowerSchedule = "step",
        shared: bool = False,
        everywhere: bool = True,
        **kwargs: Any,
    ):
        check_part("body", body, Stack, "a Stack of blocks")
        super().__init__(vocab, d, body, **kwargs)
        self.targets, self.weight = check_at_least("targets", targets, 1), check_in_range("weight", weight, 0, math.inf)
        self.lower, self.everywhere = check_flag("lower", lower), check_flag("everywhere", everywhere)
        self.lower_schedule = check_option("lower_schedule", lower_schedule, LowerSchedule)
        if not lower:
            check_unused("lower=False", shared=(shared, False), lower_schedule=(lower_schedule, "step"))
        layers = 0 if check_flag("shared", shared) or not lower else len(body.layers) - 1

        def heads(count: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(d, vocab, bias=False) for _ in range(count))

        self.further, self.beneath = heads(targets - 1), nn.ModuleList(heads(targets) for _ in range(layers))

    def forward(self, batch: Tokens, state: NumberedState | None = None, progress: float = 0.0) -> Loss:
        """The loss of an LM, with what lower layers and further tokens cost at this part of the training."""
        loss = super().forward(batch, state, progress)
        if self.everywhere:
            return loss
        return loss._replace(count=(last_targets(next_tokens(TokenBatch.from_tokens(batch))) >= 0).sum())

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """A reading, what all layers that still predict pay for it, and the parts of that."""
        depth = len(self.body.layers)
        weights = layer_weights(depth, progress, self.lower_schedule) if self.lower else {}
        layers = [*weights, depth - 1]
        out = call(tuple(str(n) for n in layers))
        by_offset = targets_of_steps(targets, self.targets)
        by_offset = by_offset if self.everywhere else [last_targets(shifted) for shifted in by_offset]
        count = (by_offset[0] >= 0).sum().clamp_min(1)
        *lower_losses, top_loss = (self._layer_loss(n, out, by_offset) / count for n in layers)
        nll = masked_mean(token_nll(out.y, by_offset[0]), by_offset[0] >= 0)
        parts = {"nll": nll}
        if self.targets > 1:
            parts["further"] = top_loss - nll
        if self.lower:
            weighted = [weight * value for weight, value in zip(weights.values(), lower_losses, strict=True)]
            parts["beneath"] = torch.stack([nll.new_zeros(()), *weighted]).sum()
        return out, sum(parts.values(), nll.new_zeros(())), parts

    def _layer_loss(self, n: int, out: Out, targets: list[Int[Tensor, "B T"]]) -> Tensor:
        """What layer n, from 0, pays for all of its targets."""
        norm = self.body.norm
        h = out.taps[str(n)] if norm is None else norm(out.taps[str(n)])
        is_top = n == len(self.body.layers) - 1
        if is_top or not len(self.beneath):
            first = out.y if is_top else self.head(h)
            return multi_step_loss([first, *(head(h) for head in self.further)], targets, self.weight)
        return multi_step_loss([head(h) for head in self.beneath[n]], targets, self.weight)


def _example() -> AuxiliaryLM:
    blocks = [kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)) for _ in range(2)]
    return AuxiliaryLM(11, 16, Stack(blocks, kf.LayerNorm(16)), shared=True)


EXAMPLES = (_example,)
