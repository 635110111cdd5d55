"""parse: a pattern from text, such as "Causal() & (Band(64) | Tokens(2))". The inverse of a pattern's repr."""

import ast
from typing import Any

from kinformer.core.pattern import Heads, Pattern
from kinformer.discover import modules


def parse(text: str) -> Pattern:
    """The pattern that an expression of pattern names, whole numbers, tuples and & | ~ spells.

    Nothing else is evaluated.

    How members take patterns as keywords and checkpoints keep them. Errors: ValueError names what is not understood,
    or the patterns there are.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"pattern {text!r} does not parse: {error.msg}; write for example 'Causal() & Band(64)'"
        ) from None
    found = _build(tree, text, _patterns())
    if not isinstance(found, Pattern):
        raise ValueError(f"{text!r} is {found!r}, not a pattern; write for example 'Causal() & Band(64)'")
    return found


def _patterns() -> dict[str, type]:
    """Every pattern class of the discovered files, by its name."""
    found: dict[str, type] = {"Heads": Heads}
    for module in modules("patterns").values():
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Pattern) and value.__module__ == module.__name__:
                found[name] = value
    return found


def _build(node: ast.expr, text: str, known: dict[str, type]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.Tuple(elts=items):
            return tuple(_build(item, text, known) for item in items)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_build(operand, text, known)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _build(left, text, known) & _build(right, text, known)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left, text, known) | _build(right, text, known)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in known:
                raise ValueError(f"{name} in {text!r} is not a pattern; there are {', '.join(sorted(known))}")
            values = [_build(arg, text, known) for arg in args]
            named = {word.arg: _build(word.value, text, known) for word in keywords if word.arg}
            try:
                return known[name](*values, **named)
            except TypeError as error:
                raise ValueError(f"{ast.unparse(node)} in {text!r}: {error}") from None
    raise ValueError(
        f"{ast.unparse(node)!r} in {text!r} is not understood; use pattern names, whole numbers, tuples and & | ~"
    )
