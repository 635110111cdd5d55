"""Contrastive: a loss that matches the prediction of a hidden part of a text with the part itself."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.loss import Penalty, masked_mean


class Contrastive(nn.Module, KeywordHints):
    """Contrastive predictive coding: the vector of a hidden part is recognised among all parts of a batch.

        -log exp(a_i . b_i) / sum_j exp(a_i . b_j), the mean over hidden parts i

    A part is a sentence or another segment. Choose it beside a loss of masked tokens, so that the vectors of different
    sentences differ. The vector a_i is predicted for the hidden part i from its context. The vector b_j summarizes part
    j without context, and j runs over all parts of the batch. The product is not divided by a temperature.

    If a batch is cut into pieces (`accumulate`) or shared between processes, each piece compares fewer parts, so the
    loss differs.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.4; van den Oord et al., 2018, arXiv:1807.03748.
    """

    across_rows = "the contrastive loss compares each part of a row with the parts of all rows of the batch"

    def penalties(self) -> dict[str, Penalty]:
        """Declare this loss for the model: it has no parameters and trains all layers that make a and b."""
        return {"contrast": Penalty(trains=(), reaches_x=True)}

    def forward(
        self,
        a: Float[Tensor, "B n D"],
        b: Float[Tensor, "B n D"],
        hidden: Bool[Tensor, "B n"],
        real: Bool[Tensor, "B n"],
    ) -> Float[Tensor, ""]:
        """Return the mean loss of the hidden parts; 0 if none is hidden.

        a: vectors of the parts in their context, [B n D].
        b: vectors of the parts read without context, [B n D].
        hidden: True for parts that are hidden in the context, [B n].
        real: False for padding, [B n].
        """
        a, b = (at_least_float32(x.flatten(0, 1)) for x in (a, b))
        # a finite number, not -inf: rows of padding would become NaN before the mean leaves them out
        with disable_autocast(a):
            scores = (a @ b.mT).masked_fill(~real.flatten(), torch.finfo(a.dtype).min)
        targets = torch.arange(len(a), device=a.device)
        return masked_mean(F.cross_entropy(scores, targets, reduction="none"), (hidden & real).flatten())
