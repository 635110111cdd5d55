"""Choices: hard choices (a vector's hash bucket or cluster, an exit) that a recomputed layer repeats.

If the backward pass recomputes a layer, its products may be rounded differently. A vector near the border of two
buckets may then fall into the other one, and the gradients would belong to another function. So choices are recorded
and replayed.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinformer.core.function_transforms import is_transformed


class Choices:
    """A record of the hard choices (hash buckets, clusters, early exits) of one computation, in order."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def record(self) -> AbstractContextManager[None]:
        """Return a context that records the hard choices made in it."""
        return _Taping(self.made, writes=True)

    def replay(self) -> AbstractContextManager[None]:
        """Return a context in which `choice` returns the recorded results, from the first one at each entry."""
        return _Taping(self.made, writes=False)


class _Taping(AbstractContextManager[None]):
    """A context that can be entered repeatedly: a backward that runs twice recomputes its layers twice."""

    def __init__(self, choices: list[Tensor], writes: bool):
        self.made, self.writes = choices, writes

    def __enter__(self) -> None:
        _here.tape.append((self.made, None if self.writes else iter(self.made)))

    def __exit__(self, *error: object) -> None:
        _here.tape.pop()


class _Here(threading.local):
    """A tape for each thread, because backwards of several devices recompute layers at the same time."""

    def __init__(self) -> None:
        self.tape: list[tuple[list[Tensor], Iterator[Tensor] | None]] = []  # recorded choices, and those left to replay


_here = _Here()


def choice(make: Callable[[], Tensor]) -> Tensor:
    """Return a hard choice: the result of `make`, or the recorded result inside `Choices.replay`.

    make: a function that returns the choice as a tensor.
    """
    if torch.compiler.is_compiling() or not _here.tape:
        return make()
    writing = []
    for choices, left in reversed(_here.tape):
        if left is not None:  # everything inside a replay is recomputed, so outer tapes are not needed
            value = next(left)
            break
        writing.append(choices)
    else:
        with torch.no_grad():  # with gradients, a replay would lack the tensors saved for backward
            value = make()
    for choices in writing:
        choices.append(value)
    return value


def run_checkpointed(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Call a layer whose inner values the backward pass recomputes, with the same hard choices.

    Under a function transform such as vmap PyTorch cannot recompute, so the inner values are kept.

    layer: the layer, or another function of tensors.
    inputs: its inputs.
    """

    if is_transformed():
        return layer(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        choices = Choices()
        return choices.record(), choices.replay()

    if torch.compiler.is_compiling():  # the compiler decides by itself which values it recomputes
        return checkpoint(layer, *inputs, use_reentrant=False)
    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
