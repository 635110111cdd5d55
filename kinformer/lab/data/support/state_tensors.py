"""State tensors: save the tensors in a model's state, such as its cache, by name, and restore them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.layer import State
from kinformer.core.state import map_state


def state_tensors(state: State | None) -> tuple[dict[str, Tensor], list[int] | None]:
    """Return the tensors in a model's state by name, each once, and a list of their places.

    The list has the number of the tensor at each place of the state, because one tensor may have several places. It is
    None if the state is None.
    """
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
    """Return a state of a model with the structure of `like` and the tensors that `state_tensors` saved.

    like: a new state of the same structure.
    tensors: the saved tensors by name.
    places: the number of the tensor at each place of the state, from `state_tensors`.
    device: the device of the result.

    Errors: CheckpointError if the saved state has another structure.
    """
    by_number = {number: tensors[f"state/{number}"].to(device) for number in set(places)}
    left = iter(places)
    try:
        state = map_state(lambda name, leaf: by_number[next(left)], like)
    except StopIteration:
        state = None
    if state is None or next(left, None) is not None:
        raise CheckpointError("the saved state of this run has another form than the state of its model")
    return state


def to_cpu(value: Tensor) -> Tensor:
    """Return the tensor `value` without gradients, contiguous, on the CPU."""
    return value.detach().cpu().contiguous()
