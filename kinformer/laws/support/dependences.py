"""Dependences of outputs on inputs, which the laws measure by gradients."""

from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.core.memory import Memory
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import Subject
from kinformer.nn.attention import Attention

ROUNDING = 1e-13  # rounding in float64, relative to the largest gradient


def loss(out: Out, batch: InputBatch) -> Tensor:
    """Return a loss for tests of gradients: a weighted sum of y and of aux at real positions.

    The side of the padding does not change it.

    out: the output of a call.
    batch: the input of the call.
    """
    rows = real_values(out.y, batch)
    weights = [torch.arange(1.0, row.numel() + 1).to(row).view_as(row).sin() for row in rows]
    terms = [(row * weight).sum() for row, weight in zip(rows, weights, strict=True)]
    for value in out.aux.values():
        terms += [piece.sum() for piece in (real_values(value, batch) if value.dim() else [value])]
    return torch.stack(terms).sum()


def real_values(value: Tensor, batch: InputBatch) -> list[Tensor]:
    """Return the entries of a tensor without padding: one tensor for each row of the batch.

    value: a tensor [B T ...].
    batch: the batch, whose positions show the padding.
    """
    return [row[mark] for row, mark in zip(value, batch.is_real, strict=True)]


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a module by name, without frozen ones.

    module: the module.
    """
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def gradients(value: Tensor, module: Any, **tensors: Tensor) -> dict[str, Tensor | None]:
    """Return the gradients of a loss for the trainable parameters and for further tensors, by name.

    A parameter or tensor without a gradient has None.

    value: the loss.
    module: the module with the parameters.
    tensors: further tensors by name, such as the input.
    """
    of = {**tensors, **trainable(module)}
    values = (
        torch.autograd.grad(value, list(of.values()), allow_unused=True) if value.requires_grad else (None,) * len(of)
    )
    return dict(zip(of, values, strict=True))


def dependences(subject: Subject, module: Any, batch: InputBatch) -> Tensor:
    """Return how much the output of token t depends on input token s, as absolute gradients [row, t, s].

    The output is y and aux of a call. Tokens are counted with padding; outputs at padding have 0.

    subject: the layer or model under test, which knows how to call the module.
    module: the module, built by `subject`.
    batch: the input.
    """
    out, leaf = subject.call_traced(module, batch)
    watched = [(out.y * _noise(out.y)).sum(2), *(value.sin() for value in out.aux.values() if value.dim())]
    total = torch.stack([value for value in watched if value.requires_grad]).sum(0)
    rows = []
    for t in range(batch.size[1]):
        (gradient,) = torch.autograd.grad(total[:, t].sum(), leaf, retain_graph=True, allow_unused=True)
        rows.append(leaf.new_zeros(batch.size) if gradient is None else gradient.abs().sum(-1))
    return torch.stack(rows, 1) * batch.is_real[:, :, None]


def beyond_rounding(read: Tensor) -> Tensor:
    """Return a mask of the dependences that are too large to be rounding errors.

    read: dependences of outputs on inputs, from the function `dependences`.
    """
    return read > ROUNDING * read.amax()


def _noise(like: Tensor) -> Tensor:
    """Return random weights of the same shape, so that no sum cancels."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(7), dtype=like.dtype)


def memory_read(layer: Attention) -> Memory | None:
    """Return the memory (states carried between chunks) that a layer uses in its present mode, or None.

    A layer uses its memory in train mode. In eval mode it uses only a memory that no cache can replace.

    layer: the attention layer.
    """
    memory = layer.memory
    return memory if memory is not None and (layer.training or not memory.cached) else None
