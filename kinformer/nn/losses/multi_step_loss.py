"""Auxiliary losses: which lower layers still predict, which further tokens, and what all of it costs."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.nn.losses.cross_entropy import cross_entropy

LowerSchedule = Literal["step", "linear"]


def layer_weights(depth: int, progress: float, schedule: LowerSchedule = "step") -> dict[int, float]:
    """The loss weight of each lower layer that still predicts, by index from 0, without the last layer.

    Layer l of n, counted from 1, stops at progress l / (2 n): the lowest first, and all but the last by half of the
    training. Choose it to train deep stacks, whose lower layers learn first. Choose `aligned` if lower layers must
    still predict after the training.

    depth: n, the number of layers.
    progress: the finished fraction of the training, from 0 to 1.
    schedule: "step" keeps the weight at 1 until the layer stops; "linear" lets it fall linearly from 1 to 0 by then,
        w = 1 - 2 n progress / l. The paper says that lower layers "contribute less and less" and states only where
        they stop, which both schedules share.

    Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Intermediate layer losses".
    """
    spent = {layer: 2 * depth * progress / (layer + 1) for layer in range(depth - 1)}
    return {layer: 1.0 if schedule == "step" else 1 - part for layer, part in spent.items() if part < 1}


def targets_of_steps(targets: Int[Tensor, "B T"], count: int) -> list[Int[Tensor, "B T"]]:
    """Targets of each place and of the next count - 1 steps; -1 where a target is missing there or on the way.

    So no target lies in another document, behind padding, or beyond what is scored.
    """
    by_step = [targets]
    for step in range(1, count):
        later = F.pad(targets, (0, step), value=-1)[:, step:]
        by_step.append(torch.where(by_step[-1] >= 0, later, -1))
    return by_step


def last_targets(targets: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Keep only the last target of each run of consecutive targets, i.e. of each document; -1 elsewhere."""
    after = F.pad(targets, (0, 1), value=-1)[:, 1:]
    return torch.where(after < 0, targets, -1)


def multi_step_loss(
    logits: Sequence[Float[Tensor, "B T V"]], targets: Sequence[Int[Tensor, "B T"]], weight: float = 0.5
) -> Float[Tensor, ""]:
    """CE_1 + weight * sum_{k > 1} CE_k, each summed over its own targets, in nats: the mean is the caller's.

    logits: of the next token first, then of each further one.
    targets: those of each; -1 where there is none.
    weight: of every further target; the paper's second has 0.5.

    Errors: ValueError for other than as many targets. Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Multiple
    targets".
    """
    costs = [cross_entropy(of_step, target)[0] for of_step, target in zip(logits, targets, strict=True)]
    return costs[0] + weight * torch.stack(costs)[1:].sum()
