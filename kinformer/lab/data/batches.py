"""Batches: training and validation batches that the caller already has, such as labelled rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints

Source = Callable[[int], Any] | Iterable[Any]


@dataclass(frozen=True, eq=False)
class Batches(KeywordHints):
    """Training batches and validation batches of the caller's own data: `Batches(train, valid)`.

    Choose it if no kind of data of `kinformer/lab/data` fits. A batch is a tensor, or a tree of tuples, lists and dicts
    of tensors.

    train: a function from the number of a training step (0, 1, ...) to a batch, or an iterable of batches that are used
        in turn.
    valid: batches for validation; each validation uses all of them. With None, the batches of an iterable `train` are
        used.
    tokenizer: the tokenizer that made the tokens, in a form that `fit` takes. With None, it is the tokenizer of a
        trained model, or unknown for a new one (bytes, if it has 256 tokens).

    Errors: ValueError if `train` or `valid` holds no batch, or if `train` is a function and `valid` is None.
    """

    train: Source
    valid: Iterable[Any] | None = None
    tokenizer: Any = None

    def __post_init__(self) -> None:
        if self.valid is None and callable(self.train):
            raise ValueError(
                "Batches has no validation batches: got only a training function. Give Batches(function, valid), where "
                "valid is a list of batches"
            )
        for name in ("train", "valid"):  # a generator can be read only once
            if (batches := getattr(self, name)) is not None and not callable(batches):
                object.__setattr__(self, name, tuple(batches))
        if self.train == () or self.validation_batches == ():
            raise ValueError("Batches is empty: got no batch for training or for validation. Give at least one of each")

    @property
    def validation_batches(self) -> tuple[Any, ...]:
        """The batches that are used for validation."""
        return cast(tuple[Any, ...], self.train if self.valid is None else self.valid)

    def at(self, step: int) -> Any:
        """Return the training batch of a step; an iterable `train` begins again after its last batch."""
        if callable(self.train):
            return self.train(step)
        batches = cast(tuple[Any, ...], self.train)
        return batches[step % len(batches)]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter."""
    return next(model.parameters()).device


def to_device(device: Any, batch: Any) -> Any:
    """Move a batch with all its tensors to a device.

    device: the target device.
    batch: a tensor, or a tree of tuples, named tuples, lists and dicts; other leaves are returned unchanged.
    """
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
    """Count the tokens of a batch by its first tensor.

    For rows of tokens [B T], these are the B (T - 1) predicted tokens: the first token of a row is not predicted. A
    tensor with another number of axes counts its entries.
    """
    if isinstance(batch, Tensor):
        return batch[:, 1:].numel() if batch.dim() == 2 else batch.numel()
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    return tokens_of(batch[0]) if isinstance(batch, tuple | list) and len(batch) else 0
