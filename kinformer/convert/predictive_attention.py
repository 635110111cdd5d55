"""The conversion `predictive_attention`: BERT with convolved scores of the block below."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from kinformer.convert.support.bert_source import (
    bert_keywords,
    lengthen,
    replace_attention,
    resolve_length,
    tile_positions,
    trained_positions,
)
from kinformer.convert.support.changed_model import record_change
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.evolving import EvolvingAttention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.predictive import PredictiveAttention


@dataclass(frozen=True)
class PredictiveAttentionConversion(Conversion):
    """Add a convolution of the scores of the block below to the scores of each block of a BERT.

    Choose it to fine-tune a BERT, RoBERTa or DistilBERT on short texts with attention maps that learn from each other.
    The convolutions start at 0, and the block's own scores have the weight 1: with scores "predictive" they are

        s = q.k / sqrt(head_dim) + (1 - alpha) LeakyReLU(conv(s_below)),

    so the outputs are equal at every length until training moves the kernels. The result stays a `bert` with
    changed layers, because the member has pre-norm blocks without BERT's segment types.

    scores: "predictive" as above, or "evolving", the later form: the convolution reads
        alpha s_below + (1 - alpha) own, and this mixture is also added.
    alpha: weight of the source's own scores with "predictive", greater than 0; with "evolving" the share of the scores
        from below, below 1. Outputs are equal with "evolving" only if alpha is 0. None gives 0.5 for "predictive" and
        0 for "evolving".
    beta: with "evolving" the weight of the convolution, below 1.
    size: rows and columns of the convolution, an odd number.
    slope: slope of negative values after the convolution; 1 means none.
    length: longest row in tokens; None keeps the length of the source. Memory grows with its square.

    Errors: ValueError, in one line, for a source that is no bert in its published form or has one block, and for
    options out of range.

    Source: Wang et al., 2021, arXiv:2102.12895 (BERT from published weights); Wang et al., 2021,
    https://openreview.net/forum?id=YQVjbJPnPc9.

    Differences: the authors keep the mixture's weights as they are, so that an adapted checkpoint starts from other
    scores. Here the factor of the dot product undoes the weight of the block's own scores.
    """

    scores: Literal["predictive", "evolving"] = "predictive"
    alpha: float | None = None
    beta: float = 0.5
    size: int = 3
    slope: float = 0.01
    length: int | None = None

    def resolve(self, model: Model) -> Conversion:
        depth = bert_keywords(model, "predictive_attention")["depth"]
        if depth < 2:
            raise ValueError(
                "the conversion predictive_attention needs a block below another: got a bert of depth 1, expected "
                "at least 2. Convert a deeper bert"
            )
        predictive = self.scores == "predictive"
        alpha = (0.5 if predictive else 0.0) if self.alpha is None else self.alpha
        self._check_weight("alpha", alpha, above=predictive)
        self._check_weight("beta", self.beta, above=False)
        if check_at_least("size", self.size, 1) % 2 == 0:
            raise ValueError(f"size={self.size} is even, so the kernel has no centre. Give an odd size")
        if self.length is not None:
            resolve_length(self.length, model)
        return replace(self, alpha=alpha)

    def restructure(self, model: Model) -> Model:
        bert_keywords(model, "predictive_attention")
        replace_attention(model, self._attention)
        if self.length is not None:
            lengthen(model, self.length)
        return record_change(model, self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        return {} if self.length is None else tile_positions(source, self.length)

    def promise(self, model: Model) -> Promise:
        if self.scores == "evolving" and self.alpha:
            return Promise(
                1, f"in longer rows alpha={self.alpha} adds scores of the block below, which BERT does not read"
            )
        known = trained_positions(model) if self.length is not None else math.inf
        return Promise(known, "the kernels start at 0 and add nothing to the scores")

    def _check_weight(self, name: str, value: float, *, above: bool) -> None:
        """Raise ValueError unless a weight is in (0, 1] if `above`, or else in [0, 1)."""
        if not (0 < value <= 1 if above else 0 <= value < 1):
            expected = "above 0 and at most 1" if above else "at least 0 and below 1"
            raise ValueError(f"{name}={value} does not fit scores={self.scores!r}. Give a number {expected}")

    def _attention(self, number: int, old: Attention) -> Attention:
        """Return the layer of a block, with the projections of its old layer."""
        mechanism: Any = old.mechanism
        options: Any = {"dropout": mechanism.dropout}
        if not number:
            return Attention(
                old.projection, Explicit(mechanism.pattern, up=True, **options), aggregation=old.aggregation
            )
        assert self.alpha is not None
        options |= {"size": self.size, "slope": self.slope, "alpha": self.alpha}
        own = self.alpha if self.scores == "predictive" else (1 - self.alpha) * (1 - self.beta)
        options["scale"] = old.sizes.k_dim**-0.5 / own
        new: ConvolvedScores
        if self.scores == "predictive":
            new = PredictiveAttention(mechanism.pattern, old.sizes.heads, **options)
        else:
            new = EvolvingAttention(mechanism.pattern, old.sizes.heads, beta=self.beta, **options)
        nn.init.zeros_(new.convolution.conv.weight)
        nn.init.zeros_(new.convolution.conv.bias)  # type: ignore[arg-type]
        return Attention(old.projection, new.to(old.projection.matrix("q")[0]), aggregation=old.aggregation)
