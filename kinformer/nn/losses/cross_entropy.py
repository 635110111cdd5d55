"""Cross-entropy: what a model of tokens or classes pays for the target that came."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.loss import token_nll


def cross_entropy(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The sum of -log p(target) in nats over real targets, and how many there are: the mean is the caller's.

    Means of batches and of processes can only be put together where both are known. In float32 or better.

    logits: scores of every entry.
    targets: -1 where there is none.
    smoothing: the share of each target's probability that is spread evenly over all entries.

    Source: label smoothing: Szegedy et al., 2016, arXiv:1512.00567.
    """
    return token_nll(logits, targets, smoothing).sum(), torch.sum(targets >= 0)
