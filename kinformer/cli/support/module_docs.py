"""What a module of a part says of itself."""

import inspect
import re
from types import ModuleType
from typing import Any


def public_parts(module: ModuleType) -> list[tuple[str, Any]]:
    """The public classes and functions that a module defines, in order."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
        and inspect.getdoc(value)
    ]


def first_sentence(module: ModuleType) -> str:
    """The first sentence of a module's docstring, or of the first thing in it that has one."""
    return sentence(
        (module.__doc__ or "").strip() or next((inspect.getdoc(part) or "" for _, part in public_parts(module)), "")
    )


def sentence(text: str) -> str:
    """The first sentence of a text."""
    text = " ".join(text.split())
    match = re.match(r".+?[.](?=\s+[A-Z`]|$)", text)
    return match[0] if match else text
