"""Auxiliary losses: which lower layers still predict, which further tokens, and what all of it costs."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.losses.cross_entropy import cross_entropy


def contributing(depth: int, progress: float) -> range:
    """The layers beneath the last, from 0, that still predict when this part of a training is done.

    Layer l of n, from 1, stops at l / (2 n): the lowest first, and all but the last by the half. Choose it where deep
    layers are first to be taught by shallow ones, over `aligned`, whose exits all learn to the end, since all serve.
    The paper calls lower layers weighted less and less and names these ends alone: here a layer weighs 1 until its own.

    Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Intermediate layer losses".
    """
    return range(min(int(2 * depth * progress), depth - 1), depth - 1)


def following(wanted: Int[Tensor, "B T"], count: int) -> list[Int[Tensor, "B T"]]:
    """What is wanted at each place, and so many - 1 steps after it; -1 where none is wanted there or on the way.

    So no target lies in another document, behind padding, or beyond what is scored.
    """
    found = [wanted]
    for step in range(1, count):
        later = F.pad(wanted, (0, step), value=-1)[:, step:]
        found.append(torch.where(found[-1] >= 0, later, -1))
    return found


def last(wanted: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The last target of each row alone; -1 elsewhere."""
    behind = (wanted >= 0).flip(1).cumsum(1).flip(1)
    return torch.where(behind == 1, wanted, -1)


def several(
    logits: Sequence[Float[Tensor, "B T V"]], targets: Sequence[Int[Tensor, "B T"]], weight: float = 0.5
) -> Float[Tensor, ""]:
    """CE_1 + weight * sum_{k > 1} CE_k, each summed over its own targets, in nats: the mean is the caller's.

    logits: of the next token first, then of each further one.
    targets: those of each; -1 where there is none.
    weight: of every further target; the paper's second has 0.5.

    Errors: ValueError for other than as many targets. Source: Al-Rfou et al., 2018, arXiv:1808.04444, "Multiple
    targets".
    """
    costs = [cross_entropy(one, target)[0] for one, target in zip(logits, targets, strict=True)]
    return costs[0] + weight * torch.stack(costs)[1:].sum()
