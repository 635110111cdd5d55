"""Conversion of a pattern to text, integers and tensors for an operator of a compiled graph, and back.

Integers and tensors are separate from the text, so that one compiled graph can be used for all patterns that differ
only in them.
"""

import dataclasses
import functools
import importlib
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.core.pattern import Pattern

NAMES: dict[str, type[Pattern]] = {}  # classes that cannot be imported by name


class Spelling(NamedTuple):
    """A pattern as text, integers and tensors, for an operator of a compiled graph.

    text: names of patterns and their fields in prefix order (each pattern before its inner patterns).
    numbers: integer fields of patterns, in order of appearance.
    tensors: tensors, in order of appearance.
    """

    text: str
    numbers: list[int]
    tensors: list[Tensor]


def spell_pattern(pattern: Pattern) -> Spelling | None:
    """Return a pattern as text, integers and tensors, or None if this is not possible.

    pattern: the pattern. Each field must be a pattern, an integer, a bool, a word, a tensor, None, or a tuple of these.
        Its class must be built only from its fields.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    text = _spell(pattern, numbers, tensors)
    return None if "?" in text else Spelling(text, numbers, tensors)


def _spell(x: Any, numbers: list[int], tensors: list[Tensor]) -> str:
    # joined by +, because torch.compile does not treat a formatted string as a constant
    if isinstance(x, Pattern):
        fields = dataclasses.fields(x)
        words = " pattern " + name_of(type(x)) + " " + str(len(fields))
        for field in fields:
            words = words + " " + field.name + _spell(getattr(x, field.name), numbers, tensors)
        return words
    if isinstance(x, tuple):
        words = " tuple " + str(len(x))
        for item in x:
            # integers of tuples stay in the text: tables are long and do not change with the length
            words = words + (" " + str(item) if type(item) is int else _spell(item, numbers, tensors))
        return words
    if x is None or x is True or x is False:
        return " none" if x is None else " true" if x else " false"
    if isinstance(x, Tensor):
        tensors.append(x)
        return " tensor"
    if isinstance(x, str) and len(x.split()) == 1:
        return " text " + x
    if isinstance(x, int | torch.SymInt):
        numbers.append(x)  # type: ignore[arg-type]
        return " number"
    return " ?"


def pattern_of(spelling: Spelling) -> Pattern:
    """Return the pattern that `spell_pattern` turned into this `spelling`."""
    text, numbers, tensors = spelling
    if not tensors:
        return _cached_pattern(text, tuple(numbers))
    return _build(iter(text.split()), iter(numbers), iter(tensors))


@functools.lru_cache(maxsize=64)
def _cached_pattern(text: str, numbers: tuple[int, ...]) -> Pattern:
    return _build(iter(text.split()), iter(numbers), iter(()))


def _build(words: Iterator[str], numbers: Iterator[int], tensors: Iterator[Tensor]) -> Any:
    match word := next(words):
        case "pattern":
            kind, count = _find_class(next(words)), int(next(words))
            fields = {next(words): _build(words, numbers, tensors) for _ in range(count)}
            return kind(**fields)
        case "tuple":
            return tuple(_build(words, numbers, tensors) for _ in range(int(next(words))))
        case "none" | "true" | "false":
            return {"none": None, "true": True, "false": False}[word]
        case "tensor":
            return next(tensors)
        case "text":
            return next(words)
        case "number":
            return next(numbers)
    return int(word)


def _find_class(name: str) -> type[Pattern]:
    return NAMES[name] if name in NAMES else _import_name(name)


def name_of(kind: type[Pattern]) -> str:
    """Return a name that identifies the class `kind` of a pattern.

    The name is module and class name if the class can be imported by it. Otherwise it is a unique name, so that a
    compiled graph of an earlier process does not match. "?" stands for a class that is not built only from its fields.
    """
    if not _is_made_of_fields(kind):
        return "?"
    name = kind.__module__ + ":" + kind.__qualname__
    if kind.__module__ == "__main__" or _import_name(name) is not kind:
        name = next(
            (alias for alias, registered in NAMES.items() if registered is kind), f"{uuid.uuid4()}:{kind.__name__}"
        )
        NAMES[name] = kind
    return name


# torch.compiler.assume_constant_result sets only this flag, but importing it delays every command by a second
name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_made_of_fields(kind: type[Pattern]) -> bool:
    # a class with its own __init__ that is not a dataclass may hold state outside its fields
    maker = next(base for base in kind.__mro__ if "__init__" in vars(base))
    return "__dataclass_fields__" in vars(maker) and all(field.init for field in dataclasses.fields(kind))


def _import_name(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value
