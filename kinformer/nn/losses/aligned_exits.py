"""Aligned: the loss of all exits at once, each read with nobody having left."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_option
from kinformer.nn.losses.cross_entropy import cross_entropy

Weights = Literal["uniform", "linear", "sqrt", "inverse", "inverse_sqrt"]
POWER = {"uniform": 0.0, "linear": 1.0, "sqrt": 0.5, "inverse": -1.0, "inverse_sqrt": -0.5}


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x, whose gradient is multiplied."""
    return x if factor == 1 else x.detach() + factor * (x - x.detach())


def aligned_loss(
    logits: Sequence[Float[Tensor, "B T V"]],
    targets: Int[Tensor, "B T"],
    weights: Weights = "uniform",
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """sum_n w_n CE_n / sum_n w_n, summed over real targets; and how many there are: the mean is the caller's.

    Choose it to train the layers of an `EarlyExit`: each learns to predict, from states of which none was copied.

    logits: of each exit, the lowest first.
    targets: -1 where there is none.
    weights: w_n of exit n, from 1: "uniform" 1, "linear" n as CALM trains, "sqrt" its root, "inverse" 1 / n,
        "inverse_sqrt" its root.
    smoothing: as of `cross_entropy`.

    Errors: ValueError for other weights. Source: Elbayad et al., 2019, arXiv:1910.10073, equation 4; "linear":
    Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """
    power = POWER[check_option("weights", weights, Weights)]
    losses, counts = zip(*(cross_entropy(exit_logits, targets, smoothing) for exit_logits in logits), strict=True)
    w = torch.arange(1, len(losses) + 1, dtype=losses[0].dtype, device=targets.device) ** power
    return (w * torch.stack(losses)).sum() / w.sum(), counts[0]
