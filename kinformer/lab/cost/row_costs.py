"""Costs of one row, counted: the bytes of its decoding state and the operations of a forward pass."""

import torch

from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import State
from kinformer.core.mechanism import NoState
from kinformer.core.model import Model
from kinformer.core.state import state_bytes
from kinformer.lab.cost.cost import counting, filled_state, sample_rows
from kinformer.lab.data.batches import device_of
from kinformer.models.agent import Agent

EPISODE = 256  # steps that an agent reads before the row, more than its memory holds


def full_state(model: Model, length: int) -> State | None:
    """Return the state of a model whose memory of earlier tokens is full; None if it has no memory.

    model: the model; its mode decides the kind of state.
    length: tokens of the row.
    """
    if not isinstance(model, Agent):
        return filled_state(model, 1, length)
    state, steps = model.start(1, length), model.sample(1, EPISODE, 0).observations
    return model.predict(steps, state).state


def count_state(model: Model, length: int) -> int | None:
    """Return the bytes of the decoding state of one row; None without a state.

    The model is in eval mode, because some layers with a memory have another state in training.

    model: the model.
    length: tokens of the row.
    """
    try:
        with evaluating(model):
            return state_bytes(model.start(1, length, device=device_of(model)))
    except (NoState, ValueError):
        return None


def count_flops(model: Model, length: int) -> int:
    """Return the additions and multiplications of a forward pass over one row.

    The model is in eval mode, so losses of training are not counted, and its memory of earlier tokens is full.

    model: the model.
    length: tokens of the row.
    """
    with evaluating(model), torch.no_grad():
        batch, state = sample_rows(model, 1, length), full_state(model, length)
        with counting() as tally:
            model(batch, state, 0.5)
    return tally.flops
