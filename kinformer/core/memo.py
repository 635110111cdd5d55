"""Memo: results about positions and patterns that the layers of one forward pass share."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

V = TypeVar("V")


class Memo:
    """A store of masks, cache slots and checks of positions, each computed once per forward pass.

    A model makes one memo for each call, and the Context carries it. A memo holds only functions of positions and
    patterns, never values that need a gradient, so a recomputed layer finds the same values. It is an opaque object:
    code that rebuilds dicts and dataclasses on their way into a layer would lose its entries. Under compile nothing is
    kept, because the compiler shares equal expressions itself.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple, object]] = {}
        self._expected: list[tuple[Tensor, str]] = []

    def __reduce__(self) -> tuple:
        """Copy as an empty memo, because the entries depend on the identity of tensors."""
        return Memo, ()

    def get(self, make: Callable[[], V], *key: Hashable | Tensor) -> V:
        """Return the result stored under `key`; if there is none, call `make` and store its result.

        Tensors in a key are compared by identity, patterns by value.
        """
        if torch.compiler.is_compiling():
            return make()
        name = _name(key)
        if name not in self._found:
            self._found[name] = (key, make())  # the key is kept, so that no other tensor gets its id
        return self._found[name][1]  # type: ignore[return-value]

    def by_head(self, pos: Int[Tensor, "B N"]) -> Int[Tensor, "B 1 N"]:
        """Return the positions with a dimension for heads, as one object for all layers."""
        return self.get(lambda: pos[:, None], "by head", pos)

    def store(self, value: object, *key: Hashable | Tensor) -> None:
        """Store a result under `key`, so that `get` finds it."""
        if not torch.compiler.is_compiling():
            self._found[_name(key)] = (key, value)

    def expect(self, good: Tensor, error: str) -> None:
        """Plan a check: the next `look` raises ValueError with the message `error` if `good` is not True."""
        self._expected.append((good.all(), error))

    def look(self, *numbers: Tensor) -> list[int]:
        """Return the integers of tensors as Python integers, after the checks that `expect` planned.

        A forward pass waits for its device (GPU) only here.
        """
        waiting, self._expected = self._expected, []
        tensors = [n.long().flatten() for n in (*numbers, *(good for good, _ in waiting))]
        integers = torch.cat(tensors).tolist() if tensors else []
        last = len(integers) - len(waiting)
        for good, (_, error) in zip(integers[last:], waiting, strict=True):
            if not good:
                raise ValueError(error)
        return integers[:last]

    def settle(self) -> None:
        """Run the checks that `expect` planned, if there are any."""
        if self._expected:
            self.look()


def empty_memo() -> Memo:
    """Return an empty memo.

    The compiler cannot trace a dataclass default that is a class, so this is a function.
    """
    return Memo()


def _name(key: tuple) -> tuple:
    return tuple([_identity(part) if isinstance(part, Tensor) else part for part in key])


def _identity(tensor: Tensor) -> tuple[int, int]:
    # the version counter tells positions apart that were changed in place
    return id(tensor), 0 if tensor.is_inference() else tensor._version
