"""Memo: what one forward has found out about positions and patterns, shared by all of its layers."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

V = TypeVar("V")


class Memo:
    """Masks, cache slots, cuts and tests of positions, each made once per forward.

    A model makes one for each call, and the Context carries it. It holds functions of positions and patterns only,
    never of what needs a gradient, so a layer that is recomputed finds the same. An opaque object on purpose: code
    that rebuilds dicts and dataclasses on their way into a layer would lose what is written here. Nothing is kept
    while a graph is compiled: there the compiler shares what is equal.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple, object]] = {}
        self._expected: list[tuple[Tensor, str]] = []

    def __reduce__(self) -> tuple:
        """A copy is empty: what it held goes by which tensors they were."""
        return Memo, ()

    def get(self, make: Callable[[], V], *key: Hashable | Tensor) -> V:
        """What stands under a key, made if nothing does. Tensors count as themselves, patterns by value."""
        if torch.compiler.is_compiling():
            return make()
        name = _name(key)
        if name not in self._found:
            self._found[name] = (key, make())  # the key is kept, so that no other tensor gets its id
        return self._found[name][1]  # type: ignore[return-value]

    def by_head(self, pos: Int[Tensor, "B N"]) -> Int[Tensor, "B 1 N"]:
        """Positions as queries and keys carry them: one object for all layers, by which the memo knows them."""
        return self.get(lambda: pos[:, None], "by head", pos)

    def store(self, value: object, *key: Hashable | Tensor) -> None:
        """Say beforehand what `get` will find."""
        if not torch.compiler.is_compiling():
            self._found[_name(key)] = (key, value)

    def expect(self, good: Tensor, error: str) -> None:
        """Refuse the call with this ValueError where `good` is not all true, at the next look."""
        self._expected.append((good.all(), error))

    def look(self, *numbers: Tensor) -> list[int]:
        """All the whole numbers of some tensors as Python's: the one place where a forward waits for its device."""
        waiting, self._expected = self._expected, []
        tensors = [n.long().flatten() for n in (*numbers, *(good for good, _ in waiting))]
        integers = torch.cat(tensors).tolist() if tensors else []
        last = len(integers) - len(waiting)
        for good, (_, error) in zip(integers[last:], waiting, strict=True):
            if not good:
                raise ValueError(error)
        return integers[:last]

    def settle(self) -> None:
        """Look, if something that is expected has not been looked at."""
        if self._expected:
            self.look()


def empty_memo() -> Memo:
    """An empty memo; a function, because the compiler cannot trace a dataclass's default that is a class."""
    return Memo()


def _name(key: tuple) -> tuple:
    return tuple([_identity(part) if isinstance(part, Tensor) else part for part in key])


def _identity(tensor: Tensor) -> tuple[int, int]:
    # with the count of writes: positions that were changed in place are others
    return id(tensor), 0 if tensor.is_inference() else tensor._version
