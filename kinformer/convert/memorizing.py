"""The conversion `memorizing`: a window, and a few layers that also retrieve distant tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from kinformer.convert.pattern import PatternConversion, check_single_text
from kinformer.convert.support.changed_model import attention_layers, check_layer_numbers, kept_layers, record_change
from kinformer.convert.support.near_sinks import can_move_queries, make_near_keys_and_sinks, read_near_keys_and_sinks
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.model import Model, display_name
from kinformer.core.patterns.causal import Causal
from kinformer.core.scores.product import Product
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class MemorizingConversion(Conversion):
    """Let a decoder read a window, and a few of its layers also the top k keys of a long memory.

    Choose it over `window` for texts that repeat what they said long ago: names, definitions, passages to copy. Only
    the memory layers keep keys of the whole memory, so the cache stays small. Nothing is trained.

    In a memory layer one softmax runs over the window, the first tokens, and the k keys before the window with the
    highest scores. The source scores keys in the same way, and no key counts twice. The layer is therefore the layer of
    the source without its smallest far weights, and equal to it in rows with up to k far keys. The mechanism is
    `Merged(Softmax(near), TopK(far, k))`. The paper's layer (`Retrieval`) instead scales queries and keys to length 1
    and starts with a gate of 1/2, which a trained model has not learned. The paper also shows that a pretrained model
    learns to use a memory in few steps; training afterwards sends gradients through the retrieved keys.

    Rotary positions keep their distances, also to retrieved keys. Choose window + memory + sinks within the length of
    the source's training, because larger distances have never occurred. The sinks are read at window + memory + sinks
    tokens at most in memory layers, and at window + sinks tokens at most in other layers (`SinkSoftmax`). This holds
    under the conditions of the conversion `window`. In other models the distance to the sinks grows with the text.

    layers: numbers of the memory layers, from 1 at the bottom; one layer three quarters up if empty, as the 9th of 12
        in the paper. A source copies distant text with several of its layers, so more memory layers help until the
        model is trained.
    memory: number of keys before the window that are searched.
    k: number of these keys that each query and head reads.
    window: tokens of the window, the token itself included.
    sinks: number of first tokens that every token reads. Trained models put unneeded attention on them, so that a
        window without them fails.
    keep: numbers of the layers that stay as they are, memory layers or not. A count is no choice here, because the
        measurement could choose the only memory layer.

    Errors: ValueError for a model that does not predict the next token, and if `keep` leaves no memory layer.
    ValueError also for a memory layer that has other attention than softmax of products without a bias.

    Source: Wu et al., 2022, arXiv:2203.08913; the source's own scores and one softmax: Bertsch et al., 2023,
    arXiv:2305.01625.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"memorizing_transformer": {}})

    layers: tuple[int, ...] = ()
    memory: int = 8192
    k: int = 32
    window: int = 252
    sinks: int = 4
    keep: tuple[int, ...] = ()

    def resolve(self, model: Model) -> Conversion:
        check_at_least("memory", self.memory, 1)
        check_at_least("k", self.k, 1)
        check_at_least("window", self.window, 1)
        check_at_least("sinks", self.sinks, 0)
        count = len(attention_layers(model))
        check_layer_numbers("layers", self.layers, count)
        keep = kept_layers(self.keep, count)
        numbers = tuple(sorted(set(self.layers or (-(-3 * count // 4),)) - set(keep)))
        if not numbers:
            raise ValueError(f"no memory layer is left: got keep={keep}. Keep fewer layers, or name others in layers=")
        check_single_text(model, "a memory of earlier tokens")
        if not model.predicts_next:
            raise ValueError(
                f"cannot give this {display_name(model)} a memory of earlier tokens: it does not predict the next "
                "token. Use the recipe window"
            )
        return replace(self, layers=numbers)

    def restructure(self, model: Model) -> Model:
        layers = attention_layers(model)
        check_layer_numbers("layers", self.layers, len(layers))  # a damaged config may have any
        old = {number: self._softmax(model, *layers[number - 1]) for number in self.layers}
        near, moves = Band(self.window - 1), self.sinks > 0 and can_move_queries(model)
        if moves:
            read_near_keys_and_sinks(model, near, self.sinks, (*self.keep, *self.layers))
        else:
            for pattern, (_, layer) in zip(self._near().patterns(model), layers, strict=True):
                layer.mechanism.pattern = pattern  # type: ignore[assignment]
        for number, softmax in old.items():
            layer, exact = layers[number - 1][1], near | Tokens(self.sinks) if self.sinks else near
            parts: tuple[Softmax, ...]
            if moves:
                # no sink is farther away than the keys of the memory can be
                parts = make_near_keys_and_sinks(layer, near, self.sinks, self.window - 1 + self.memory + self.sinks)
            else:
                pattern = Causal() & exact
                parts = (Softmax(pattern, scale=softmax.scale, dropout=softmax.dropout, impl=softmax.impl),)
            far = Causal() & Band(self.window - 1 + self.memory) & ~exact
            top = TopK(far, self.k, scale=softmax.scale, dropout=softmax.dropout)
            layer.mechanism = Merged(*parts, top).train(softmax.training)
        return record_change(model, self)

    def promise(self, model: Model) -> Promise:
        count = len(attention_layers(model))
        keep = kept_layers(self.keep, count)
        far = f"Causal() & (Band({self.window - 1 + self.memory}) | Tokens({self.sinks}))"
        others = tuple(number for number in range(1, count + 1) if number not in self.layers)
        readable = PatternConversion(far, others).promise(model).length
        retrieved = torch.inf if self.memory <= self.k else self.window + self.sinks + self.k
        windows = replace(self._near(), keep=(*keep, *self.layers)).promise(model).length
        length = min(readable, retrieved, windows)
        return Promise(length, f"no layer leaves out a key in rows of up to {length:,} tokens")

    def _near(self) -> PatternConversion:
        """Return the conversion of all layers that are not kept, and of the memory layer, to a window."""
        window = f"Band({self.window - 1})"
        return PatternConversion(
            f"Causal() & ({window} | Tokens({self.sinks}))" if self.sinks else f"Causal() & {window}", self.keep
        )

    def _softmax(self, model: Model, name: str, layer: Attention) -> Softmax:
        """Return the attention of the memory layer."""
        mechanism = layer.mechanism
        if type(mechanism) is not Softmax:
            raise ValueError(
                f"cannot give {name} of this {display_name(model)} a memory: its mechanism is "
                f"{type(mechanism).__name__}, expected Softmax. Choose another layer"
            )
        if mechanism.bias is not None or type(mechanism.score) is not Product:
            kind = type(mechanism.score if mechanism.bias is None else mechanism.bias).__name__
            raise ValueError(
                f"cannot give {name} of this {display_name(model)} a memory: a search compares products of queries and "
                f"keys, but {kind} changes its scores. Convert a model such as gpt or llama"
            )
        return mechanism
