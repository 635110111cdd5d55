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
    function in EXAMPLES, or a pattern, is an example that breaks nothing.
    """

    make: Callable[[], Any]
    breaks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Any) -> "Example":
        """An entry of EXAMPLES: an Example, a function or class that makes a part, or else a part as it stands."""
        if isinstance(entry, cls):
            return entry
        makes = inspect.isroutine(entry) or inspect.isclass(entry) or isinstance(entry, functools.partial)
        return cls(entry) if makes else cls(lambda: entry)
