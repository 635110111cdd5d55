"""What a module of a part says of itself."""

import inspect
import re
from types import ModuleType
from typing import Any


def defined_in(module: ModuleType) -> list[tuple[str, Any]]:
    """The public classes and functions that a module itself defines, in order, documented or not."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def public_parts(module: ModuleType) -> list[tuple[str, Any]]:
    """Those of `defined_in` that have a docstring."""
    return [(name, value) for name, value in defined_in(module) if inspect.getdoc(value)]


def first_sentence(module: ModuleType) -> str:
    """The first sentence of a module's docstring, or of the first thing in it that has one."""
    texts = (inspect.getdoc(part) or "" for _, part in public_parts(module))
    return sentence((module.__doc__ or "").strip() or next(texts, ""))


def sentence(text: str) -> str:
    """The first sentence of a text."""
    text = " ".join(text.split())
    match = re.match(r".+?[.](?=\s+[A-Z`]|$)", text)
    return match[0] if match else text
