"""Tensors, besides weights, that a training needs to resume: optimiser, random numbers, carried state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.upgrade import upgrade_tensors
from kinformer.checkpoint.weights_file import is_sharded
from kinformer.lab.data.support.state_tensors import to_cpu

Tensors = dict[str, Tensor]


def optimiser_tensors(model: nn.Module, optimiser: Optimizer) -> Tensors:
    """Return the optimiser's state of each parameter, by parameter name, sharded if the parameter is.

    model: the model.
    optimiser: the optimiser.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"optimiser/{names[id(parameter)]}/{key}": value.detach() if is_sharded(value) else to_cpu(value)
        for parameter, entries in optimiser.state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(model: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the optimiser's state.

    model: the model.
    optimiser: the optimiser.
    tensors: the tensors from `optimiser_tensors`.

    Errors: CheckpointError if a tensor belongs to a parameter that the model does not train.
    """
    parameters = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    trained = (parameter for group in optimiser.param_groups for parameter in group["params"])
    order = {names[id(parameter)]: n for n, parameter in enumerate(trained)}
    by_key: dict[str, Tensors] = {}
    for place, value in tensors.items():
        kind, _, rest = place.partition("/")
        name, _, key = rest.rpartition("/")
        if kind == "optimiser":
            by_key.setdefault(key, {})[name] = value
    entries: dict[int, dict[str, Tensor]] = {}
    for key, values in by_key.items():
        for name, value in upgrade_tensors(model, values).items():
            if name in values and name not in order:
                raise CheckpointError(f"the saved optimiser has a state for {name!r}, which this model does not train")
            if name in order:
                entries.setdefault(order[name], {})[key] = _as_spread(value, parameters[name])
    optimiser.load_state_dict({"state": entries, "param_groups": optimiser.state_dict()["param_groups"]})


def _as_spread(value: Tensor, like: Any) -> Tensor:
    """Shard a value of a parameter's shape like the parameter."""
    if not is_sharded(like) or is_sharded(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # each process has read the whole tensor and keeps its shard
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def random_tensors(device: torch.device) -> Tensors:
    """Return PyTorch's random state on the CPU and on the model's device.

    device: the model's device.
    """
    states = {"random/cpu": torch.get_rng_state()}
    return states | ({"random/cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random(device: torch.device, tensors: Mapping[str, Tensor]) -> None:
    """Restore PyTorch's random state; on a GPU only if the run was on a GPU.

    device: the model's device.
    tensors: the tensors from `random_tensors`.
    """
    torch.set_rng_state(tensors["random/cpu"])
    if device.type == "cuda" and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
