"""Example: a small one of a part, by which laws, drawings and `kinformer show` know it."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """`make()` builds the part, width 16 and two heads; `breaks` names laws that it cannot keep, each with the reason.

    A declared break is by the paper's own definition: tests make sure that the law indeed does not hold. A plain
    function in EXAMPLES, or a pattern, is an example that breaks nothing. `shares` names the weights that several
    layers have in common, and the layers that are applied again and again, each with the reason. A `*` in a name
    stands for any characters: `{"*.bias.u": "the paper has one u for all layers"}`. The law `own_weights` reads it.
    """

    make: Callable[[], Any]
    breaks: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_entry(cls, entry: Any) -> "Example":
        """An entry of EXAMPLES: an Example, a function or class that makes a part, or else a part as it stands."""
        if isinstance(entry, cls):
            return entry
        makes = inspect.isroutine(entry) or inspect.isclass(entry) or isinstance(entry, functools.partial)
        return cls(entry) if makes else cls(lambda: entry)
