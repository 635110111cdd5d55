"""Example: a small instance of a part, for laws (tested properties), drawings and `kinformer show`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """A small instance of a part, with the laws (tested properties of parts) that it cannot satisfy.

    A plain function in EXAMPLES, or a pattern, is an example that satisfies every law.

    make: a function without arguments that builds the part, with width 16 and two heads.
    breaks: the laws that the part cannot satisfy by the paper's own definition, each with the reason. Tests check that
        the law indeed does not hold.
    shares: names of weights that several layers share, and of layers that are applied repeatedly, each with the reason.
        A `*` in a name stands for any characters: `{"*.bias.u": "the paper has one u for all layers"}`. The law
        `own_weights` reads it.
    """

    make: Callable[[], Any]
    breaks: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_entry(cls, entry: Any) -> "Example":
        """Return an entry of a file's list EXAMPLES as an Example.

        The entry is an Example, a function or class that makes a part, or the part itself.
        """
        if isinstance(entry, cls):
            return entry
        makes = inspect.isroutine(entry) or inspect.isclass(entry) or isinstance(entry, functools.partial)
        return cls(entry) if makes else cls(lambda: entry)
