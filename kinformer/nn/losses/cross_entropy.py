"""Cross-entropy: the negative log-probability of the targets."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.loss import token_nll


def cross_entropy(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the sum of -log p(target) in nats over real targets, and the number of targets.

    The caller divides the sum by the number. Both are needed to combine the means of several batches or processes. The
    sum is computed in float32 or better.

    logits: scores of all entries of the vocabulary, [B T V].
    targets: indices of the right entries, [B T]; -1 for no target.
    smoothing: fraction of each target's probability that is spread evenly over all entries.

    Source: label smoothing: Szegedy et al., 2015, arXiv:1512.00567.
    """
    return token_nll(logits, targets, smoothing).sum(), torch.sum(targets >= 0)
