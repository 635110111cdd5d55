"""called_layers: the self-attention layers of a model in the order of their calls."""

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from kinformer.core.layer import Layer
from kinformer.core.mechanism import NoState
from kinformer.core.model import Model
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention


class CalledLayer(NamedTuple):
    """One call of a self-attention layer.

    layer: the layer.
    positions: number of positions of the row that it reads.
    """

    layer: Attention
    positions: int


def called_layers(model: Model, tokens: int) -> list[CalledLayer]:
    """Return the calls of self-attention layers on a random row, in their order.

    A layer that is called twice appears twice.

    model: the model.
    tokens: tokens of the row.
    """
    calls: list[CalledLayer] = []

    def note(layer: Attention, inputs: Any) -> None:
        calls.append(CalledLayer(layer, inputs[0].shape[1]))

    was_training = model.training
    with torch.no_grad(), ExitStack() as exits:
        for part in model.modules():
            if isinstance(part, Attention) and not part.cross:
                exits.callback(part.register_forward_pre_hook(note).remove)
        exits.callback(model.train, was_training)
        model.train()  # no token exits early in train mode
        model.judge(model.sample(1, tokens, 0))
    return calls


def has_other_state(model: Model) -> bool:
    """Return True if a layer other than attention carries a state, which may hold any earlier token.

    model: the model, such as one with an LSTM.
    """
    within = {id(part) for layer in model.modules() if isinstance(layer, Attention) for part in layer.modules()}
    return any(
        isinstance(part, Layer) and id(part) not in within and not _has_layers(part) and _has_state(part)
        for part in model.modules()
    )


def _has_layers(layer: Layer) -> bool:
    return any(isinstance(part, Layer) for part in layer.modules() if part is not layer)


def _has_state(layer: Layer) -> bool:
    try:
        return bool(leaves(layer.start(1, 1)))
    except NoState:
        return True
