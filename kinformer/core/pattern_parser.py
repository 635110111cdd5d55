"""parse: a pattern from text such as "Causal() & Band(64)", the inverse of a pattern's repr."""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.quote import quote, shorten

Made = Mapping[str, Callable[..., Any]]


def parse(text: str, own_patterns: Made | None = None) -> Pattern:
    """Return the pattern of an expression; no other code is executed.

    An expression consists of pattern names, integers, tuples and & | ~. Members (named systems) take patterns as text
    in this form, and checkpoints store them in it.

    text: the expression, such as "Causal() & (Band(64) | Strided(64))".
    own_patterns: further patterns by name, a class or a function each, from a user's own file.

    Errors: ValueError, in one line, if the text is not understood; for an unknown name it names the nearest pattern.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"pattern {quote(text)} does not parse: {error.msg}; write for example 'Causal() & Band(64)'"
        ) from None
    pattern = _build(tree, text, {**_patterns(), **(own_patterns or {})})
    if not isinstance(pattern, Pattern):
        raise ValueError(f"{quote(text)} is {quote(pattern)}, not a pattern; write for example 'Causal() & Band(64)'")
    return pattern


def _patterns() -> dict[str, Callable[..., Any]]:
    """Return every pattern class of the discovered files by name."""
    patterns: dict[str, Callable[..., Any]] = {"Heads": Heads}
    for module in modules("patterns").values():
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Pattern) and value.__module__ == module.__name__:
                patterns[name] = value
    return patterns


def _build(node: ast.expr, text: str, names: Made) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.Tuple(elts=items):
            return tuple(_build(item, text, names) for item in items)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_operand(operand, text, names)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _operand(left, text, names) & _operand(right, text, names)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _operand(left, text, names) | _operand(right, text, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in names:
                raise ValueError(f"{shorten(name)} in {quote(text)} is not a pattern{suggest_names(name, names)}")
            values = [_build(arg, text, names) for arg in args]
            named = {word.arg: _build(word.value, text, names) for word in keywords if word.arg}
            try:
                return names[name](*values, **named)
            except TypeError as error:
                reason = str(error).rpartition("() ")[2]  # without the "Band.__init__() " of Python's own message
                usage = f"{name}({', '.join(inspect.signature(names[name]).parameters)})"
                raise ValueError(f"wrong arguments in {shorten(ast.unparse(node))}: {reason}. Write {usage}") from None
    raise ValueError(
        f"{quote(ast.unparse(node))} in {quote(text)} is not understood; write patterns with their numbers in "
        "brackets, such as Band(64) or Causal(), and join them with & | ~"
    )


def _operand(node: ast.expr, text: str, names: Made) -> Pattern:
    operand = _build(node, text, names)
    if not isinstance(operand, Pattern):
        raise ValueError(
            f"{shorten(ast.unparse(node))} in {quote(text)} is {quote(operand)}; & | ~ combine patterns, such as "
            "Causal()"
        )
    return operand
