"""The conversion `poolingformer`: BERT or RoBERTa with a window and a second level of pooled keys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kinformer.convert.support.bert_source import (
    bert_keywords,
    lengthen,
    replace_attention,
    resolve_length,
    tile_positions,
    trained_positions,
)
from kinformer.convert.support.changed_model import attention_layers, record_change
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model
from kinformer.nn.attention import Attention
from kinformer.nn.depth.pooling_levels import PoolingLevels
from kinformer.nn.mechanisms.pooling import Pooling
from kinformer.nn.shorteners.windows import DynamicWindows, MaxWindows, MeanWindows, WindowShortener


@dataclass(frozen=True)
class PoolingformerConversion(Conversion):
    """Turn a BERT, RoBERTa or DistilBERT into a Poolingformer: a window and pooled keys around it.

    Choose it over `longformer` if distant tokens matter approximately and no token is known to be global. The window
    has the projections of the source. The second level starts with their queries and keys and with values of 0, so it
    adds nothing until training moves them. Rows that fit into the window therefore have equal outputs. The result stays
    a `bert` with changed layers, because the member `poolingformer` lacks BERT's segment types, mask token and
    epsilons.

    near: tokens that the first level reads on either side; None gives the length of the source. The paper has 64. The
        conversion `longformer` says why half of the length may be better.
    far: reach of the pooled keys on either side; None gives 4 times `near`, as in the paper.
    kernel: tokens per pooled key.
    stride: distance between the first tokens of consecutive kernels.
    pool: "mean", "max", or "dynamic": weights that the middle token of a kernel predicts, which start as the mean.
    length: longest row in tokens; None gives 8 times the length of the source, 4,096 for 512.

    Errors: ValueError, in one line, for a source that is no bert in its published form, and for heads of another width
    than d / heads. ValueError too for a length below the source's or a window.

    Source: Zhang et al., 2021, arXiv:2105.04371, sections 3 and 4 (from RoBERTa and XLM-R).

    Differences: the values of 0 are a choice of this library; no code of the authors is known.
    """

    near: int | None = None
    far: int | None = None
    kernel: int = 5
    stride: int = 4
    pool: Literal["mean", "max", "dynamic"] = "dynamic"
    length: int | None = None

    def resolve(self, model: Model) -> Conversion:
        keywords = bert_keywords(model, "poolingformer")
        if keywords["head_dim"] not in (None, keywords["d"] // keywords["heads"]):
            raise ValueError(
                f"head_dim={keywords['head_dim']} does not fit: the second level reads the heads of the first, so both "
                f"need the width d={keywords['d']}. Convert a bert with head_dim={keywords['d'] // keywords['heads']}"
            )
        length = resolve_length(self.length, model)
        near = trained_positions(model) if self.near is None else self.near
        far = min(4 * near, length) if self.far is None else self.far
        for name, value in (("near", near), ("far", far)):
            if check_at_least(name, value, 0) > length:
                raise ValueError(f"{name}={value} is larger than length={length}. Give at most {length}")
        return replace(self, near=near, far=far, length=length)

    def restructure(self, model: Model) -> Model:
        bert_keywords(model, "poolingformer")
        assert self.length is not None
        replace_attention(model, self._levels)
        lengthen(model, self.length)
        return record_change(model, self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        assert self.length is not None
        sources = tile_positions(source, self.length)
        for name, layer in attention_layers(source):
            widths: Any = layer.projection.widths  # rows of queries, keys and values
            for part in ("weight", "bias"):
                old = (f"{name}.projection.qkv.{part}",)
                sources[f"{name}.near.projection.qkv.{part}"] = WeightSource("moved", old)
                new = WeightSource("duplicated", old, _WithoutValues(widths[0] + widths[1]))
                sources[f"{name}.far.projection.qkv.{part}"] = new
                output = (f"{name}.aggregation.linear.{part}",)
                sources[f"{name}.out.linear.{part}"] = WeightSource("moved", output)
        return sources

    def promise(self, model: Model) -> Promise:
        assert self.near is not None
        length = min(self.near + 1, trained_positions(model))
        return Promise(length, f"the window holds rows of up to {length:,} tokens, and pooled keys have values of 0")

    def _levels(self, number: int, old: Attention) -> PoolingLevels:
        assert self.near is not None and self.far is not None
        heads, width, mechanism = old.sizes.heads, old.sizes.k_dim, old.mechanism
        dropout: Any = mechanism.dropout
        pooling = Pooling(self.far, self._windows(heads, width), self.stride, dropout=dropout)
        new = PoolingLevels(old.d, heads, self.near, pooling, head_dim=width, dropout=dropout)
        return new.to(old.projection.matrix("q")[0])

    def _windows(self, heads: int, width: int) -> WindowShortener:
        if self.pool == "dynamic":
            return DynamicWindows(self.kernel, heads, width, width)
        return MeanWindows(self.kernel) if self.pool == "mean" else MaxWindows(self.kernel)


@dataclass(frozen=True)
class _WithoutValues:
    """Stacked rows of queries, keys and values, with 0 in place of the rows from `first` on."""

    first: int

    def __call__(self, stacked: Tensor) -> Tensor:
        return torch.cat([stacked[: self.first], torch.zeros_like(stacked[self.first :])])
