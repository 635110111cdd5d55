"""Aligned: a loss of all exits of an early-exit model at once, computed while no token leaves."""

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
    """Return x unchanged; in the backward pass its gradient is multiplied by `factor`.

    x: any tensor.
    """
    return x if factor == 1 else x.detach() + factor * (x - x.detach())


def aligned_loss(
    logits: Sequence[Float[Tensor, "B T V"]],
    targets: Int[Tensor, "B T"],
    weights: Weights = "uniform",
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the weighted cross-entropy of all exits, summed over real targets, and the number of targets.

        sum_n w_n CE_n / sum_n w_n

    Here CE_n is the cross-entropy of exit n. Choose it to train the layers of an `EarlyExit` (a stack that tokens leave
    early): each exit learns to predict from hidden states of its own layer, never from copies of an earlier one. The
    caller divides by the number of targets.

    logits: logits of each exit, the lowest first, each [B T V].
    targets: token ids, [B T]; -1 for no target.
    weights: weight w_n of exit n, with exits counted from 1: "uniform" 1, "linear" n as in CALM, "sqrt" n^(1/2),
        "inverse" 1 / n, "inverse_sqrt" n^(-1/2).
    smoothing: label smoothing, as in `cross_entropy`.

    Errors: ValueError for other weights. Source: Elbayad et al., 2019, arXiv:1910.10073, equation 4; "linear":
    Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """
    power = POWER[check_option("weights", weights, Weights)]
    losses, counts = zip(*(cross_entropy(exit_logits, targets, smoothing) for exit_logits in logits), strict=True)
    w = torch.arange(1, len(losses) + 1, dtype=losses[0].dtype, device=targets.device) ** power
    return (w * torch.stack(losses)).sum() / w.sum(), counts[0]
