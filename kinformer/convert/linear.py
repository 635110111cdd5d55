"""The conversion `linear`: exact attention to near keys, and linear attention to all others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.convert.support.attention_transfer import transfer_attention
from kinformer.convert.support.changed_model import attention_layers, earlier_conversions, kept_layers, record_change
from kinformer.core.checks import check_at_least, check_option
from kinformer.core.conversion import Conversion, Progress, Promise
from kinformer.core.feature_map import FeatureMap
from kinformer.core.model import Model, display_name
from kinformer.core.patterns.causal import Causal
from kinformer.core.scores.product import Product
from kinformer.nn.attention import Attention
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.hedgehog import Hedgehog
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens

Map = Literal["hedgehog", "favor"]
NAMES: dict[str, Map] = {"hedgehog": "hedgehog", "lolcats": "hedgehog", "favor": "favor", "performer": "favor"}


@dataclass(frozen=True)
class LinearConversion(Conversion):
    """Read near keys and attention sinks by softmax, and all other keys by linear attention.

        y_i = sum_(j <= i) w_ij v_j / sum_(j <= i) w_ij
        w_ij = exp(q_i.k_j / sqrt(K)) if i - j < window or j < sinks, else phi(q_i).phi(k_j)

    Choose it to decode text of any length in constant memory and time per token, if distant text still matters. The
    conversion `window` forgets it. The feature map phi is trained by attention transfer: each converted layer gets the
    inputs that it has in the source, and learns to give the source's outputs. Rotary positions keep their distances, so
    a row longer than in training needs scaled positions first, such as `yarn`.

    map: feature map phi. "hedgehog" is learned, so it needs data. "favor" estimates exp(q.k / sqrt(K)) by random
        directions and needs no training; on sharp attention its error is large.
    window: number of last tokens that are read exactly, the token itself included.
    sinks: number of first tokens that are read exactly.
    features: number of directions of the feature map; the width of a head if None. Hedgehog makes two features of each.
    keep: numbers of the layers, from 1 at the bottom, that stay as they are; or how many, chosen by
        measurement.
    map_seed: seed of random directions; each layer adds its number.

    It trains only the new parameters: for each layer the matrices of the feature map for queries and for keys, and one
    level for each head. All weights of the source stay as they are. Adapt these afterwards, as LoLCATs does by LoRA.

    Errors: ValueError for a layer that is no plain causal softmax attention. Source: Zhang et al., 2024,
    arXiv:2402.04347 (Hedgehog); Zhang et al., 2024, arXiv:2410.10254 (LoLCATs); Choromanski et al., 2020,
    arXiv:2009.14794 (FAVOR+).

    Differences: LoLCATs has no sinks, and small models need them. It also has a form with a window of blocks. Its
    loss compares the outputs of heads; here the outputs of the layer are compared, relative to their size. `Hedgehog`
    lists the differences of the feature map and of the level.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {name: {"map": map} for name, map in NAMES.items()}
    )

    map: Map = "hedgehog"
    window: int = 64
    sinks: int = 4
    features: int | None = None
    keep: int | tuple[int, ...] = ()
    map_seed: int = 0

    def resolve(self, model: Model) -> Conversion:
        width = attention_layers(model)[0][1].sizes.k_dim
        return self if self.features is not None else replace(self, features=width)

    def restructure(self, model: Model) -> Model:
        for number, name, layer in self._layers(model):
            _check_layer(model, name, layer, self.map)
            new = Attention(layer.projection, self._mechanism(number, layer), aggregation=layer.aggregation)
            model.set_submodule(name, new.to(next(layer.parameters())).train(layer.training))
        return record_change(model, self)

    def promise(self, model: Model) -> Promise:
        if not list(self._layers(model)):
            return Promise(torch.inf, "every layer stays as it is")
        reason = "no key lies outside the window" if not self.sinks else "no key lies outside the window and the sinks"
        return Promise(self.window + self.sinks, reason)

    def without_data(self) -> str:
        return "without data the feature maps are untrained" if self.map == "hedgehog" else ""

    def fit(self, source: Model, converted: Model, rows: Int[Tensor, "N T"], progress: Progress) -> None:
        """Train the feature maps and the levels on rows of tokens, by attention transfer.

        It does nothing for FAVOR+, and for rows that are no longer than window and sinks, because nothing is far there.
        """
        if (
            self.map == "hedgehog" and rows.shape[1] > self.window + self.sinks + 1
        ):  # models read all tokens but the last
            names = [name for _, name, _ in self._layers(source)]
            transfer_attention(source, converted, names, rows, lambda done: progress("transfer attention", done))

    def _layers(self, model: Model) -> Iterator[tuple[int, str, Attention]]:
        """Yield the number, from 1, and the name of each layer that changes, with the layer."""
        layers = attention_layers(model)
        keep = kept_layers(self.keep, len(layers))
        for number, (name, layer) in enumerate(layers, 1):
            if number not in keep:
                yield number, name, layer

    def _mechanism(self, number: int, layer: Attention) -> Merged:
        """Return the new mechanism of a layer."""
        near = Band(check_at_least("window", self.window, 1) - 1)
        exact = near | Tokens(self.sinks) if check_at_least("sinks", self.sinks, 0) else near
        old = cast(Softmax, layer.mechanism)
        far = Delayed(LinearAttention(self._map(number, layer)), self.window, sinks=self.sinks)
        return Merged(Softmax(Causal() & exact, scale=old.scale, dropout=old.dropout, impl=old.impl), far)

    def _map(self, number: int, layer: Attention) -> FeatureMap:
        """Return the feature map of a layer."""
        sizes, seed = layer.sizes, self.map_seed + number - 1
        directions = sizes.k_dim if self.features is None else self.features
        if check_option("map", self.map, Map) == "favor":
            return FAVOR(sizes.k_dim, directions, seed=seed)
        return Hedgehog(sizes.heads, sizes.k_dim, key_heads=sizes.key_heads, directions=directions, seed=seed)


def _check_layer(model: Model, name: str, layer: Attention, map: Map) -> None:
    """Raise ValueError unless the layer is softmax attention to all keys up to the query."""
    mechanism, sizes = layer.mechanism, layer.sizes
    wrong = None
    if type(mechanism) is not Softmax:
        wrong = f"its mechanism is {type(mechanism).__name__}"
    elif mechanism.pattern != Causal():
        wrong = f"its pattern is {mechanism.pattern}"
    elif mechanism.bias is not None or type(mechanism.score) is not Product:
        part = mechanism.score if mechanism.bias is None else mechanism.bias
        wrong = f"its scores have {type(part).__name__}, which no feature map knows"
    elif layer.memory is not None or sizes.value_heads != sizes.key_heads:
        wrong = "it has a memory" if layer.memory is not None else "it has other numbers of heads of keys and of values"
    elif map == "favor" and mechanism.scale not in (None, sizes.k_dim**-0.5):
        wrong = f"its scores are scaled by {mechanism.scale:g}, and favor estimates exp(q.k / sqrt(K))"
    if wrong:
        raise ValueError(
            f"cannot make {name} of this {display_name(model)} linear: {wrong}, expected Softmax(Causal()). Convert a "
            f"model such as gpt or llama, or keep this layer.{earlier_conversions(model)}"
        )
