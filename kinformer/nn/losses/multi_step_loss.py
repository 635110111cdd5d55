"""Auxiliary losses: predictions of lower layers and of later tokens."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.nn.losses.cross_entropy import cross_entropy

LowerSchedule = Literal["step", "linear"]


def layer_weights(depth: int, progress: float, schedule: LowerSchedule = "step") -> dict[int, float]:
    """Return the weight of each lower layer's prediction loss at this time of training, by index from 0.

    In this training every layer predicts the targets. The loss of layer l of n, counted from 1, ends at progress l / (2
    n), so the lowest ends first. After half of the training only the last layer's loss is left. The result contains
    only layers whose loss has not ended, and never the last layer. Choose it to train deep stacks, in which lower
    layers learn first. Choose `aligned` if lower layers must still predict after the training.

    depth: n, the number of layers.
    progress: the finished fraction of the training, from 0 to 1.
    schedule: "step" keeps the weight at 1 until the layer's loss ends; "linear" lets it fall linearly from 1 to 0 until
        then, w = 1 - 2 n progress / l.

    Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Intermediate layer losses".

    Differences: the paper says that lower layers "contribute less and less", and gives only the points at which their
    losses end. Both schedules have these points.
    """
    spent = {layer: 2 * depth * progress / (layer + 1) for layer in range(depth - 1)}
    return {layer: 1.0 if schedule == "step" else 1 - part for layer, part in spent.items() if part < 1}


def targets_of_steps(targets: Int[Tensor, "B T"], count: int) -> list[Int[Tensor, "B T"]]:
    """Return the targets of a loss that predicts several next tokens: a tensor for each step ahead.

    The first tensor is `targets`, the next has the target one place later, and so on. A target is -1 if it, or a target
    between it and the position, is missing. So no target lies in another document, behind padding, or outside the
    tokens to learn.

    targets: ids of the next token, [B T]; -1 for no target.
    count: number of tensors, at least 1.
    """
    by_step = [targets]
    for step in range(1, count):
        later = F.pad(targets, (0, step), value=-1)[:, step:]
        by_step.append(torch.where(by_step[-1] >= 0, later, -1))
    return by_step


def last_targets(targets: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Keep only the last target of each run of consecutive targets (a document); the others become -1.

    targets: token ids, [B T]; -1 for no target.
    """
    after = F.pad(targets, (0, 1), value=-1)[:, 1:]
    return torch.where(after < 0, targets, -1)


def multi_step_loss(
    logits: Sequence[Float[Tensor, "B T V"]], targets: Sequence[Int[Tensor, "B T"]], weight: float = 0.5
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the next token and, with a weight, of the tokens after it, in nats.

        CE_1 + weight * sum_{k > 1} CE_k

    Each CE is summed over its own targets; the caller takes the mean.

    logits: logits of the next token first, then of each further one, each [B T V].
    targets: targets of each step, each [B T]; -1 for no target.
    weight: weight of every further target; 0.5 for the paper's second target.

    Errors: ValueError if logits and targets differ in number. Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Multiple
    targets".
    """
    costs = [cross_entropy(of_step, target)[0] for of_step, target in zip(logits, targets, strict=True)]
    return costs[0] + weight * torch.stack(costs)[1:].sum()
