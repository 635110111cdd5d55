"""What a result depends on: a loss whose gradients tell, and who reads whom."""

from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.core.memory import Memory
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import Subject
from kinformer.nn.attention import Attention

ROUNDING = 1e-13  # of the largest gradient, in float64


def loss(out: Out, batch: InputBatch) -> Tensor:
    """A loss of values and aux at real positions, the same however these are placed."""
    rows = real_values(out.y, batch)
    weights = [torch.arange(1.0, row.numel() + 1).to(row).view_as(row).sin() for row in rows]
    terms = [(row * weight).sum() for row, weight in zip(rows, weights, strict=True)]
    for value in out.aux.values():
        terms += [piece.sum() for piece in (real_values(value, batch) if value.dim() else [value])]
    return torch.stack(terms).sum()


def real_values(value: Tensor, batch: InputBatch) -> list[Tensor]:
    """What stands at real positions, row by row."""
    return [row[mark] for row, mark in zip(value, batch.is_real, strict=True)]


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, without frozen ones."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def gradients(value: Tensor, module: Any, **tensors: Tensor) -> dict[str, Tensor | None]:
    """Gradients of a loss for trainable parameters and further tensors, by name; None without a gradient."""
    of = {**tensors, **trainable(module)}
    values = (
        torch.autograd.grad(value, list(of.values()), allow_unused=True) if value.requires_grad else (None,) * len(of)
    )
    return dict(zip(of, values, strict=True))


def dependences(subject: Subject, module: Any, batch: InputBatch) -> Tensor:
    """How much y and aux at column t depend on x at column s, through gradients: a row, t, s."""
    out, leaf = subject.call_traced(module, batch)
    watched = [(out.y * _noise(out.y)).sum(2), *(value.sin() for value in out.aux.values() if value.dim())]
    total = torch.stack([value for value in watched if value.requires_grad]).sum(0)
    rows = []
    for t in range(batch.size[1]):
        (gradient,) = torch.autograd.grad(total[:, t].sum(), leaf, retain_graph=True, allow_unused=True)
        rows.append(leaf.new_zeros(batch.size) if gradient is None else gradient.abs().sum(-1))
    return torch.stack(rows, 1) * batch.is_real[:, :, None]


def beyond_rounding(read: Tensor) -> Tensor:
    """True for dependences that are larger than rounding errors of cancelling terms."""
    return read > ROUNDING * read.amax()


def _noise(like: Tensor) -> Tensor:
    """Random weights of a shape, so that no sum cancels."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(7), dtype=like.dtype)


def memory_read(layer: Attention) -> Memory | None:
    """The memory that a layer reads as it stands: it is there in training, or where no cache holds as much."""
    memory = layer.memory
    return memory if memory is not None and (layer.training or not memory.cached) else None
