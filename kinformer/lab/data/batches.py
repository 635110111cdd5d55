"""Batches: data that is there as batches already: labelled rows, pairs, whatever a model reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

Source = Callable[[int], Any] | Iterable[Any]


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches to learn from, and batches to be measured on: `Batches(train, valid)`.

    train: a function from the step, 0, 1, .., to a batch, or batches that are taken in turn.
    valid: batches that are measured, every one of them each time; None measures on those of an iterable `train`.

    Errors: ValueError where there is no batch. A batch is a tensor, or a tree of tuples, lists and dicts of them.
    """

    train: Source
    valid: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        if self.valid is None and callable(self.train):
            raise ValueError("batches that a function draws need some to be measured on; give Batches(function, valid)")
        for name in ("train", "valid"):  # an iterable may be gone through once alone
            if (batches := getattr(self, name)) is not None and not callable(batches):
                object.__setattr__(self, name, tuple(batches))
        if self.train == () or self.validation_batches == ():
            raise ValueError("there is no batch; give at least one to learn from and one to be measured on")

    @property
    def validation_batches(self) -> tuple[Any, ...]:
        """The batches that are measured."""
        return cast(tuple[Any, ...], self.train if self.valid is None else self.valid)

    def at(self, step: int) -> Any:
        """The batch of a step."""
        if callable(self.train):
            return self.train(step)
        batches = cast(tuple[Any, ...], self.train)
        return batches[step % len(batches)]


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device


def to_device(device: Any, batch: Any) -> Any:
    """A batch, with every tensor in it, on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(device, part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(device, part) for part in batch)
    if isinstance(batch, dict):
        return {name: to_device(device, part) for name, part in batch.items()}
    return batch


def tokens_of(batch: Any) -> int:
    """How much a batch holds: of rows of tokens what is predicted of them, else the entries of its first tensor."""
    if isinstance(batch, Tensor):
        return batch[:, 1:].numel() if batch.dim() == 2 else batch.numel()
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    return tokens_of(batch[0]) if isinstance(batch, tuple | list) and len(batch) else 0
