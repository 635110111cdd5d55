"""Choices: hard choices (a hash, a cluster, an exit) that are made once, also where a layer is computed again.

A backward that recomputes a layer multiplies in another order than its forward did; a vector near a border then falls
to the other side, and the gradients are those of another function. So choices are written down and read back.
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
    """The choices of one computation, in their order."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def record(self) -> AbstractContextManager[None]:
        """Choices made while this lasts are written down."""
        return _Taping(self.made, writes=True)

    def replay(self) -> AbstractContextManager[None]:
        """Choices asked for while this lasts are those that were written down, from the first on at each entry."""
        return _Taping(self.made, writes=False)


class _Taping(AbstractContextManager[None]):
    """Entered as often as one likes: a backward that is run twice computes its layers twice again."""

    def __init__(self, choices: list[Tensor], writes: bool):
        self.made, self.writes = choices, writes

    def __enter__(self) -> None:
        _here.tape.append((self.made, None if self.writes else iter(self.made)))

    def __exit__(self, *error: object) -> None:
        _here.tape.pop()


class _Here(threading.local):
    """Each thread has its own tape: backwards of several devices compute layers again at the same time."""

    def __init__(self) -> None:
        self.tape: list[tuple[list[Tensor], Iterator[Tensor] | None]] = []  # what is made, and what is left to read


_here = _Here()


def choice(make: Callable[[], Tensor]) -> Tensor:
    """A hard choice: what `make` gives, or gave when this was first computed."""
    if torch.compiler.is_compiling() or not _here.tape:
        return make()
    writing = []
    for choices, left in reversed(_here.tape):
        if left is not None:  # all that goes on inside is done again, so nothing further out knows more
            value = next(left)
            break
        writing.append(choices)
    else:
        with torch.no_grad():  # or what it keeps for a backward would be missing where nothing is chosen again
            value = make()
    for choices in writing:
        choices.append(value)
    return value


def run_checkpointed(layer: Callable[..., Any], *inputs: Any) -> Any:
    """A layer whose inner values are not kept but computed again in the backward, with the same choices.

    Under a transform of functions, for which PyTorch computes nothing again, they are kept.
    """

    if is_transformed():
        return layer(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        choices = Choices()
        return choices.record(), choices.replay()

    if torch.compiler.is_compiling():  # the compiler decides by itself what it computes again
        return checkpoint(layer, *inputs, use_reentrant=False)
    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
