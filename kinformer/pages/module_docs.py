"""Public classes and functions of a module, and their first sentences, for pages."""

import inspect
import re
from types import ModuleType
from typing import Any


def defined_in(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the public classes and functions that a module itself defines, in order, documented or not.

    module: the module.
    """
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def public_parts(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the public classes and functions of a module that have a docstring.

    module: the module.
    """
    return [(name, value) for name, value in defined_in(module) if inspect.getdoc(value)]


def first_sentence(module: ModuleType) -> str:
    """Return the first sentence of a module's docstring, or else of the first docstring in it.

    module: the module.
    """
    texts = (inspect.getdoc(part) or "" for _, part in public_parts(module))
    return sentence((module.__doc__ or "").strip() or next(texts, ""))


def public_methods(cls: type) -> dict[str, Any]:
    """Return the documented public methods and properties that the library adds to a class, by name.

    cls: the class. Methods of PyTorch's classes that it overrides are left out, except `forward`.
    """
    theirs = {name for base in cls.__mro__ if base.__module__.startswith("torch.") for name in vars(base)}
    bases = [base for base in cls.__mro__ if base.__module__.startswith("kinformer.")]
    return {
        name: getattr(cls, name)
        for base in bases
        for name, value in vars(base).items()
        if not (name.startswith("_") or (name in theirs and name != "forward"))
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property))
        and inspect.getdoc(getattr(cls, name))
    }


def sentence(text: str) -> str:
    """Return the first sentence of a text on one line.

    text: the text; without a full stop in its first paragraph, that paragraph is returned.
    """
    text = " ".join(text.strip().partition("\n\n")[0].split())
    match = re.match(r".+?[.](?=\s+[A-Z`]|$)", text)
    return match[0] if match else text
