"""Short text forms of attention patterns, and the numbers and patterns inside them."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from kinformer.core.pattern import Pattern


def short_repr(pattern: Pattern) -> str:
    """Return the repr of an attention pattern in a short form, such as `Band(4) & Causal()`.

    Default values and the names of leading arguments are left out.

    pattern: the pattern.
    """
    text = repr(pattern)
    try:
        tree = _Short(_classes(pattern)).visit(ast.parse(text, mode="eval"))
    except SyntaxError:
        return text
    return ast.unparse(tree)


def largest_number(pattern: Pattern) -> int:
    """Return the largest number in an attention pattern, such as a window or stride, to scale its picture.

    Random seeds do not count.

    pattern: the pattern.
    """
    return max(_numbers(pattern), default=0)


def subpatterns(pattern: Pattern) -> Iterator[Pattern]:
    """Yield an attention pattern and all patterns that it is made of.

    pattern: the pattern.
    """
    yield pattern
    for value in _values(pattern).values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Pattern):
                yield from subpatterns(item)


def _values(pattern: Pattern) -> dict[str, Any]:
    return {field.name: getattr(pattern, field.name) for field in dataclasses.fields(pattern)}


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, Pattern):
        if value.expression is not value:
            yield from _numbers(value.expression)
        for name, item in _values(value).items():
            if name != "seed":
                yield from _numbers(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield abs(value)


def _classes(pattern: Pattern) -> dict[str, type]:
    return {type(part).__name__: type(part) for part in subpatterns(pattern)}


class _Short(ast.NodeTransformer):
    """Shortens calls: leaves out default values, and the names of leading arguments."""

    def __init__(self, classes: dict[str, type]):
        self.classes = classes

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        cls = self.classes.get(getattr(node.func, "id", ""))
        if cls is None or not node.keywords:
            return node
        parameters = inspect.signature(cls).parameters
        words = [word for word in node.keywords if not _is_default(word, parameters)]
        names = list(parameters)
        while words and names and words[0].arg == names[0] and not node.args[len(names) :]:
            node.args.append(words.pop(0).value)
            names.pop(0)
        node.keywords = words
        return node


def _is_default(word: ast.keyword, parameters: Any) -> bool:
    default = parameters[word.arg].default if word.arg in parameters else inspect.Parameter.empty
    try:
        return default is not inspect.Parameter.empty and ast.literal_eval(word.value) == default
    except ValueError:
        return False
