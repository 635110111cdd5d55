"""Adapters of LoRA on a model: put on for a training, merged to save, and restored to resume."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.lab.data.support.state_tensors import to_cpu
from kinformer.lab.train.lora import LoRA, LoRAPlan
from kinformer.lab.train.lora_linear import LoRALinear

PREFIX = "lora/"  # of the tensors that a training needs to resume


@contextmanager
def adapted(model: nn.Module, lora: LoRA | None, seed: int) -> Iterator[LoRAPlan | None]:
    """Adapt a model by LoRA while the context is entered; the exit merges the changes into its weights.

    Inside, only the changes and the parameters in `lora.train` require gradients. Afterwards the model is a plain one
    again, with the same parameter objects, and requires gradients as before.

    model: the model.
    lora: the adaptation; None leaves the model as it is.
    seed: seed of the random start of A.

    Errors: the errors of `LoRA.plan`.
    """
    if lora is None:
        yield None
        return
    plan, before = lora.plan(model), {p: p.requires_grad for p in model.parameters()}
    generator = torch.Generator().manual_seed(seed)
    try:
        for p in before:
            p.requires_grad_(False)
        for p in plan.whole.values():
            p.requires_grad_(True)
        for name, linear in plan.linears.items():
            LoRALinear.adapt(linear, lora.rank, lora.scale, plan.widths[name], generator)
        yield plan
    finally:
        for linear in plan.linears.values():
            if isinstance(linear, LoRALinear):  # memory may end before all of them are adapted
                _merge(linear)
        for p, was_trained in before.items():
            p.requires_grad_(was_trained)


@torch.no_grad()
def _merge(linear: LoRALinear) -> None:
    """Turn a LoRALinear into an nn.Linear with its change."""
    base, weight = linear.base, linear.weight
    base.copy_(weight)
    base.grad = None
    linear.plain(base)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Let a model be a plain one with merged weights while the context is entered, as to save it.

    Its parameters are copies then, so that the training goes on afterwards from exactly the same numbers.

    model: the model, with or without adapters.
    """
    layers = [part for part in model.modules() if isinstance(part, LoRALinear)]
    before = [(dict(layer._parameters), layer.widths, layer.scale) for layer in layers]
    for layer in layers:
        layer.plain(nn.Parameter(layer.weight.detach(), requires_grad=False))
    try:
        yield
    finally:
        for layer, (parameters, widths, scale) in zip(layers, before, strict=True):
            layer.__class__ = LoRALinear
            layer._parameters.clear()
            layer._parameters.update(parameters)
            layer.widths, layer.scale = widths, scale


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the adapters and of the frozen matrices, to resume a training.

    The saved model holds only their sum, which determines none of them exactly.

    model: the model.
    """
    return {
        f"{PREFIX}{name}.{key}": to_cpu(value)
        for name, part in model.named_modules()
        if isinstance(part, LoRALinear)
        for key, value in _tensors(part).items()
    }


def restore_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of the adapters of a model.

    model: the model, with adapters.
    tensors: the tensors from `adapter_tensors`; others are ignored.

    Errors: CheckpointError if a tensor is missing or of another shape.
    """
    for name, part in model.named_modules():
        for key, value in _tensors(part).items() if isinstance(part, LoRALinear) else ():
            saved = tensors.get(f"{PREFIX}{name}.{key}")
            if saved is None or saved.shape != value.shape:
                got = "none" if saved is None else list(saved.shape)
                raise CheckpointError(
                    f"cannot resume: the training state has another adapter {name}.{key}: got {got}, expected "
                    f"{list(value.shape)}"
                )
            value.data.copy_(saved)


def _tensors(layer: LoRALinear) -> dict[str, nn.Parameter]:
    return {"weight": layer.base, "lora_a": layer.lora_a, "lora_b": layer.lora_b}
