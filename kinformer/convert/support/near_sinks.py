"""Attention sinks beside near keys, at distances that training has reached, for rotary positions."""

from typing import cast

from kinformer.convert.support.changed_model import attention_layers, kept_layers
from kinformer.core.model import Model
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.scores.product import Product
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.sink_softmax import SinkSoftmax
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV


def can_move_queries(model: Model) -> bool:
    """Return True if all attention layers are causal softmax attention over rotated queries and keys.

    model: the model.
    """
    return model.predicts_next and all(_is_rotary(layer) for _, layer in attention_layers(model))


def _is_rotary(layer: Attention) -> bool:
    mechanism, projection = layer.mechanism, layer.projection
    return (
        type(mechanism) is Softmax
        and mechanism.pattern == Causal()
        and mechanism.bias is None
        and type(mechanism.score) is Product
        and layer.memory is None
        and isinstance(projection, QKV)
        and isinstance(projection.rotation, Rotary)
    )


def read_near_keys_and_sinks(model: Model, near: Pattern, sinks: int, keep: int | tuple[int, ...]) -> None:
    """Let the layers of a model read near keys and the first tokens.

    The first tokens count as just before the farthest near key of any query.

    model: the model, which is changed.
    near: the near keys of a query, such as `Band(251)`.
    sinks: number of first tokens.
    keep: numbers of the layers that stay as they are.
    """
    layers = attention_layers(model)
    kept, last = kept_layers(keep, len(layers)), int(near.reach()[0]) + sinks
    for number, (_, layer) in enumerate(layers, 1):
        if number not in kept:
            mechanism = Merged(*make_near_keys_and_sinks(layer, near, sinks, last))
            layer.mechanism = mechanism.train(layer.mechanism.training)


def make_near_keys_and_sinks(layer: Attention, near: Pattern, sinks: int, last: int) -> tuple[Softmax, SinkSoftmax]:
    """Return the attention to near keys, and to the first tokens that are not near.

    layer: the layer, for which `can_move_queries` holds.
    near: the near keys of a query.
    sinks: number of first tokens.
    last: largest position at which a query counts when it reads the first tokens.
    """
    old, rotation = cast(Softmax, layer.mechanism), cast(Rotary, cast(QKV, layer.projection).rotation)
    window = Softmax(Causal() & near, scale=old.scale, dropout=old.dropout, impl=old.impl)
    far = Causal() & Tokens(sinks) & ~near
    return window, SinkSoftmax(far, last, rotation, scale=old.scale, dropout=old.dropout, impl=old.impl)
