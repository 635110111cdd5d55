"""State tensors: the leaves of a state as tensors with names, to save it and to restore it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.checkpoint.checkpoint import CheckpointError
from kinformer.core.layer import State
from kinformer.core.state import map_state


def state_tensors(state: State | None) -> tuple[dict[str, Tensor], list[int] | None]:
    """The leaves of a state, each tensor once, and which of them stands at each place; None for no state."""
    if state is None:
        return {}, None
    numbers: dict[int, int] = {}
    tensors: dict[str, Tensor] = {}
    places: list[int] = []

    def note(name: str, leaf: Tensor) -> Tensor:
        number = numbers.setdefault(id(leaf), len(numbers))
        tensors.setdefault(f"state/{number}", to_cpu(leaf).clone())
        places.append(number)
        return leaf

    map_state(note, state)
    return tensors, places


def restore_state(like: State, tensors: Mapping[str, Tensor], places: list[int], device: torch.device) -> Any:
    """A state of the form of `like`, a fresh one, with the tensors that were saved of another."""
    by_number = {number: tensors[f"state/{number}"].to(device) for number in set(places)}
    left = iter(places)
    try:
        state = map_state(lambda name, leaf: by_number[next(left)], like)
    except StopIteration:
        state = None
    if state is None or next(left, None) is not None:
        raise CheckpointError("the state that this run carries is not of the form that its model makes")
    return state


def to_cpu(value: Tensor) -> Tensor:
    """The value without gradients, contiguous, on the CPU."""
    return value.detach().cpu().contiguous()
