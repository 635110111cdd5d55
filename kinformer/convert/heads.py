"""The conversion `heads`: fewer heads of keys and values, as in grouped and multi-query attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from kinformer.convert.support.changed_model import attention_layers, has_keyword, record_change, with_keywords
from kinformer.core.checks import check_multiple
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model, display_name
from kinformer.nn.attention import Attention
from kinformer.nn.projections.qkv import QKV


@dataclass(frozen=True)
class HeadsConversion(Conversion):
    """Replace the heads of keys and values by fewer ones, each the mean of a group.

    Choose it for a smaller cache and faster decoding. The converted model is poor until it is adapted: give data and
    minutes. Grouped-query attention needs about 5% of the training of the source (Ainslie et al.).

    key_heads: number of heads of keys and values; it divides the number that the source has.

    Source: Ainslie et al., 2023, arXiv:2305.13245, section 2.1; Shazeer, 2019, arXiv:1911.02150.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"gqa": {"key_heads": 2}, "mqa": {"key_heads": 1}, "multi_query": {"key_heads": 1}}
    )

    key_heads: int = 1

    def restructure(self, model: Model) -> Model:
        for name, layer in attention_layers(model):
            self._check(model, name, layer)
        if has_keyword(model, "key_heads"):
            return with_keywords(model, key_heads=self.key_heads)
        for _, layer in attention_layers(model):
            layer.projection = self._fewer(cast(QKV, layer.projection))
            layer.sizes = layer.projection.sizes(False)
        return record_change(model, self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        sources = {}
        for name, layer in attention_layers(source):
            if layer.sizes.key_heads == self.key_heads:
                continue
            for parameter in ("weight", "bias"):
                if getattr(layer.projection.qkv, parameter) is not None:
                    full = f"{name}.projection.qkv.{parameter}"
                    sources[full] = WeightSource(
                        "averaged", (full,), partial(self._average, cast(QKV, layer.projection))
                    )
        return sources

    def promise(self, model: Model) -> Promise:
        heads = {layer.sizes.key_heads for _, layer in attention_layers(model)}
        if heads == {self.key_heads}:
            return Promise(torch.inf, "the number of heads stays as it is")
        return Promise(0, "each new head is the mean of several, so adapt the model before its use")

    def _check(self, model: Model, name: str, layer: Attention) -> None:
        if type(layer.projection) is not QKV or layer.sizes.value_heads != layer.sizes.key_heads:
            raise ValueError(
                f"cannot merge the heads of {name} in this {display_name(model)}: its projection is "
                f"{type(layer.projection).__name__}, expected QKV with as many heads of values as of keys"
            )
        if layer.extras or layer.key_extras or list(layer.mechanism.parameters()):
            raise ValueError(
                f"cannot merge the heads of {name} in this {display_name(model)}: {type(layer.mechanism).__name__} has "
                "weights for each head. Convert a model with plain Softmax attention"
            )
        check_multiple("heads of keys", layer.sizes.key_heads, "key_heads", self.key_heads)

    def _fewer(self, old: QKV) -> QKV:
        """Return a projection with fewer heads of keys and values, with new weights."""
        new = QKV(
            old.d,
            old.heads,
            key_heads=self.key_heads,
            head_dim=old.k_dim,
            v_dim=old.v_dim,
            rotation=old.rotation,
            bias=old.bias,
        )
        new.q_norm, new.k_norm = old.q_norm, old.k_norm
        return new.to(old.qkv.weight)

    def _average(self, projection: QKV, stacked: Tensor) -> Tensor:
        """Return stacked rows of queries, keys and values in which each group of key heads has become one."""
        q, k, v = stacked.split(projection.widths)

        def mean(rows: Tensor, width: int) -> Tensor:
            groups = rows.unflatten(0, (self.key_heads, -1, width))  # [G heads width *]
            return groups.mean(1).flatten(0, 1)

        return torch.cat([q, mean(k, projection.k_dim), mean(v, projection.v_dim)])
