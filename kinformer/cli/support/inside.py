"""The patterns inside a module."""

from typing import Any


def patterns_in(model: Any) -> dict[Any, int]:
    """The patterns that a module's parts hold, and in how many places."""
    from kinformer.core.pattern import Pattern

    count: dict[Any, int] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Pattern):
                count[value] = count.get(value, 0) + 1
    return count
