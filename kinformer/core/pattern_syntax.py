"""Syntax of pattern expressions such as "Causal() & Band(64)", and the names in them; it does not import torch."""

import ast
from collections.abc import Collection

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.quote import quote, shorten


def parse_pattern_syntax(text: str, names: Collection[str]) -> ast.expr:
    """Return the syntax tree of a pattern expression whose calls have known names.

    Choose it to refuse a misspelled name before torch is imported. Choose `parse` to build the pattern.

    text: the expression.
    names: names of all patterns.

    Errors: ValueError, in one line, for text that is no Python expression, and for an unknown name with the nearest.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"pattern {quote(text)} does not parse: {error.msg}; write for example 'Causal() & Band(64)'"
        ) from None
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in names:
                raise ValueError(f"{shorten(name)} in {quote(text)} is not a pattern{suggest_names(name, names)}")
    return tree
