"""AuxiliaryLM: a language model with auxiliary training losses at lower layers and for later tokens."""

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
    """Language model over a `Stack` with training losses at lower layers and for several tokens ahead.

    loss = L_n + sum of w_l L_l over lower layers l

    L = CE(token 1 ahead) + weight sum_k CE(token k ahead)

    L_n is the loss L of the last layer. The weights w_l depend on the progress of the training (`layer_weights`): the
    lowest layers stop predicting first. Choose it for stacks that are too deep to learn from the last layer only.
    Choose `MultiExit` if the trained model must also predict at lower layers. It generates as an `LM` does: only
    training uses the additional heads, and each costs as much as the head. All losses are means over the same number of
    targets, the tokens one ahead, so a batch may be split.

    vocab, d, kwargs: arguments of `LM`.
    body: a `Stack`; its last norm, if any, is applied before every head.
    targets: number of tokens ahead to predict, with one head each.
    weight: loss weight of each token beyond the first.
    lower: True trains lower layers to predict too.
    lower_schedule: decay of the loss weights of lower layers during training: "step" or "linear".
    shared: True lets lower layers use the heads of the last layer; False gives them their own heads.
    everywhere: True predicts at every position. False predicts only at the last position of each row or document, which
        was common before the paper. A token further ahead is predicted at the last position for which it exists.

    Errors: ValueError for a body that is no Stack, for no targets, for shared heads without predicting lower layers,
    and the errors of `LM`.
    Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Auxiliary losses".
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
        """Return the loss of an `LM` plus the auxiliary losses at this progress of training, from 0 to 1."""
        loss = super().forward(batch, state, progress)
        if self.everywhere:
            return loss
        return loss._replace(count=(last_targets(next_tokens(TokenBatch.from_tokens(batch))) >= 0).sum())

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output, the total loss of all layers that still predict, and the parts of that loss."""
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
        """Return the summed loss of layer n, counted from 0, over all of its targets."""
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
