"""Contrastive: what is said of a part in its context must be nearest to what is said of it alone."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.loss import Penalty, masked_mean


class Contrastive(nn.Module):
    """-log exp(a_i . b_i) / sum_j exp(a_i . b_j), the mean over parts i: contrastive predictive coding.

    Choose it beside hidden tokens, for summaries of sentences that must tell them apart: a_i is what the context says
    of part i, which is hidden in it, b_j what is said of part j read alone, and j goes over all parts of the batch. The
    product is plain; there is no temperature.

    A piece of a batch has fewer parts to compare, so `accumulate` and several processes change this loss.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.4; van den Oord et al., 2018, arXiv:1807.03748.
    """

    across_rows = "the contrastive loss compares a part with the parts of all rows that are read together"

    def penalties(self) -> dict[str, Penalty]:
        """It has no parameters, and trains all that made both."""
        return {"contrast": Penalty(trains=(), reaches_x=True)}

    def forward(
        self,
        a: Float[Tensor, "B n D"],
        b: Float[Tensor, "B n D"],
        hidden: Bool[Tensor, "B n"],
        real: Bool[Tensor, "B n"],
    ) -> Float[Tensor, ""]:
        """a: of parts in their context; b: of parts read alone; hidden: asked about; real: no padding.

        0 where none is hidden.
        """
        a, b = (at_least_float32(x.flatten(0, 1)) for x in (a, b))
        # a number and not -inf: rows of parts that are none are left out of the mean, and must not be NaN
        with disable_autocast(a):
            scores = (a @ b.mT).masked_fill(~real.flatten(), torch.finfo(a.dtype).min)
        targets = torch.arange(len(a), device=a.device)
        return masked_mean(F.cross_entropy(scores, targets, reduction="none"), (hidden & real).flatten())
