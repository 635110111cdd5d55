"""The keywords of a member: allowed annotations, checks of values, and conversion of text to values.

A member is a function that makes a named model. Choose `parse_keywords` to convert the words of a command line to
keywords, and `check_keywords` before building.
"""

import ast
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from kinformer.core.did_you_mean import check_known_keywords, suggest_names
from kinformer.core.quote import quote

# names that an order of cost may use besides keywords: the size of an input, with its unit, and functions
SIZES = {"L": "tokens in a row", "elements": "elements of a set", "pixels": "values of a picture", "steps": "steps"}
FUNCTIONS = {"log": math.log, "sqrt": math.sqrt}
_SCALARS: tuple[Any, ...] = (int, float, bool, str, types.NoneType)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; for any other annotation the annotation itself."""
    union = typing.get_origin(annotation) in (Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _is_known(annotation: Any) -> bool:
    if annotation in _SCALARS or typing.get_origin(annotation) is Literal:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and all(_is_flat(a) for a in _options(arguments[0]))
    options = _options(annotation)
    return len(options) > 1 and all(_is_known(option) for option in options)


def _is_flat(annotation: Any) -> bool:
    return typing.get_origin(annotation) is not tuple and _is_known(annotation)


def _fits(value: Any, annotation: Any) -> bool:
    if typing.get_origin(annotation) is Literal:
        return any(type(value) is type(option) and value == option for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(annotation)[0]) for item in value)
    if len(_options(annotation)) > 1:
        return any(_fits(value, option) for option in _options(annotation))
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, annotation) and (annotation is bool or not isinstance(value, bool))


def describe(annotation: Any) -> str:
    """Return a type annotation in readable form: `int | None`, `"a" | "b"`, `tuple[int, ...]`.

    annotation: the annotation.
    """
    if typing.get_origin(annotation) is Literal:
        return " | ".join(repr(option) for option in typing.get_args(annotation))
    if len(_options(annotation)) > 1:
        return " | ".join(describe(option) for option in _options(annotation))
    if typing.get_origin(annotation) is tuple and _is_known(annotation):
        return f"tuple[{describe(typing.get_args(annotation)[0])}, ...]"
    if annotation is types.NoneType:
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a member function with evaluated annotations.

    function: the member function, which makes a named model.

    Errors: TypeError if the signature cannot be a config.
    """
    try:
        evaluated = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise TypeError(f"an annotation of {describe_callable(function)} cannot be evaluated: {error}") from error
    for name, parameter in evaluated.parameters.items():
        place = f"the keyword {name!r} of {describe_callable(function)}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"{place} must be a named keyword, not *args, **kwargs or positional-only; a config names each keyword"
            )
        if parameter.default is parameter.empty:
            raise TypeError(f"{place} has no default; every keyword needs one")
        if not _is_known(parameter.annotation):
            expected = "int, float, bool, str, Literal, tuple[T, ...], X | None, or a union of these"
            bare = parameter.annotation is parameter.empty
            actual = "no annotation" if bare else f"the annotation {describe(parameter.annotation)}"
            raise TypeError(f"{place} has {actual}; annotate it with {expected}")
        if not _fits(parameter.default, parameter.annotation):
            raise TypeError(f"{place} is {describe(parameter.annotation)}, but its default is {parameter.default!r}")
    return evaluated


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or its repr if it has none.

    function: the function.
    """
    return getattr(function, "__name__", repr(function))


def describe_callable(function: Callable[..., Any]) -> str:
    """Return words for a function with keywords: its kind and name, such as "the member 'gpt'".

    function: the function or class.
    """
    usual = "class" if isinstance(function, type) else "member"
    return f"the {getattr(function, 'kind', usual)} {name_of(function)!r}"


def check_keywords(function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Check that each keyword is in a function's signature and that its value fits its annotation.

    function: the member function, which makes a named model.
    keywords: the keywords.

    Errors: TypeError, in one line, for the first keyword that does not fit.
    """
    parameters = signature(function).parameters
    for name, value in keywords.items():
        check_known_keywords(describe_callable(function), [name], parameters)
        if not _fits(value, parameters[name].annotation):
            expected = describe(parameters[name].annotation)
            advice = ""
            if isinstance(value, list) and _fits(tuple(value), parameters[name].annotation):
                advice = "; write a tuple"
            elif type(value).__module__.startswith("kinformer.") and _fits(repr(value), parameters[name].annotation):
                advice = f"; write {name}={repr(value)!r}"
            raise TypeError(
                f"the keyword {quote(name)} of {name_of(function)!r} must be {expected}, got {quote(value)}{advice}"
            )


def check_cost(cost: str, keywords: Iterable[str]) -> str:
    """Return the order of cost of a member if it is one: an expression such as "L * window".

    It says how the operations of a forward pass grow. Other keywords have their defaults, and factors without a name
    are constant. Terms that grow with the size of the input at most, such as linear layers, are left out.
    `tests/members/test_order_of_cost.py` compares it with counted operations.

    cost: an arithmetic expression in a size of the input (`SIZES`), keywords of the member, `log` and `sqrt`.
    keywords: the keywords of the member.

    Errors: TypeError if the text is not an expression, or if it contains another name.
    """
    try:
        tree = ast.parse(cost, mode="eval").body
    except (SyntaxError, TypeError):
        tree = None
    if tree is None or not _is_arithmetic(tree):
        raise TypeError(f"wrong cost: got {quote(cost)}, expected an expression such as 'L * window'")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if unknown := names.difference(keywords, SIZES, FUNCTIONS):
        raise TypeError(
            f"wrong cost: got {quote(cost)} with the name {quote(min(unknown))}, expected keywords of the member and "
            f"{', '.join((*SIZES, *FUNCTIONS))}"
        )
    return cost


def cost_value(cost: str, values: Mapping[str, float]) -> float:
    """Return the value of an order of cost.

    cost: the order of cost, as `check_cost` allows it.
    values: value of each name in it.
    """
    return float(eval(cost, {"__builtins__": {}, **FUNCTIONS}, dict(values)))


def _is_arithmetic(node: ast.expr) -> bool:
    """Return True for names and numbers, joined by operators and `FUNCTIONS`."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_arithmetic(argument)
        case ast.Name(id=name):
            return name not in FUNCTIONS
        case ast.Constant(value=value):
            return type(value) in (int, float)
    return False


def split(text: str, at: str = ",") -> list[str]:
    """Split a text at separators outside brackets: "f(1, 2), 3" gives "f(1, 2)" and "3".

    text: the text.
    at: the separator between the pieces, one character.
    """
    pieces, deep, start = [], 0, 0
    for place, letter in enumerate(text):
        deep += (letter in "([{") - (letter in ")]}")
        if letter == at and deep == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [piece.strip() for piece in (*pieces, text[start:])]


def _is_bracketed(text: str) -> bool:
    """Return True if one pair of brackets encloses the whole text; for "(a) | (b)" it does not."""
    return text.startswith("(") and text.endswith(")") and len(split(text[:-1], ")")) == 1


def _tuple(text: str, annotation: Any) -> tuple[Any, ...]:
    pieces = split(text[1:-1] if _is_bracketed(text) else text)
    pieces = pieces[:-1] if pieces[-1] == "" else pieces
    return tuple(_convert(piece, typing.get_args(annotation)[0]) for piece in pieces)


def _convert_plain(text: str, annotation: Any) -> Any:
    """Convert a text to one plain annotation; ValueError or KeyError if it does not fit."""
    if annotation is types.NoneType:
        return {"none": None}[text.lower()]
    if annotation is bool:
        return _WORDS[text.lower()]
    if typing.get_origin(annotation) is Literal:
        return {str(option): option for option in typing.get_args(annotation)}[text]
    if typing.get_origin(annotation) is tuple:
        return _tuple(text, annotation)
    return annotation(text)


def _origin_type(annotation: Any) -> Any:
    origin = typing.get_origin(annotation)
    return annotation if origin is None else origin


def _convert(text: str, annotation: Any) -> Any:
    """Convert a text to the first type that fits: None, bool, int, float, Literal, tuple, str.

    A tuple is tried before str only if the text has brackets around it or a comma outside brackets: "Band(4, 4)" stays
    one pattern.
    """
    order: list[Any] = [types.NoneType, bool, int, float, Literal, tuple, str]
    if len(split(text)) == 1 and not _is_bracketed(text):
        order = [types.NoneType, bool, int, float, Literal, str, tuple]
    for option in sorted(_options(annotation), key=lambda option: order.index(_origin_type(option))):
        try:
            return _convert_plain(text, option)
        except (ValueError, KeyError):
            continue
    raise ValueError(text)


def _advise_composing(text: str, annotation: Any) -> str:
    """Return advice about a word that is not near any option, such as the name of a user's own part."""
    options = [option for option in typing.get_args(annotation) if isinstance(option, str)]
    if typing.get_origin(annotation) is not Literal or not options:
        return ""
    return suggest_names(text, options, "; to use a part of your own, write a member that composes it (FILE.py:NAME)")


def as_texts(keywords: Mapping[str, Any]) -> list[str]:
    """Return keywords as texts such as "window=128", which `parse_keywords` converts back.

    keywords: values by name.
    """

    def text(value: Any) -> str:
        return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)

    return [f"{name}={text(value)}" for name, value in keywords.items()]


def parse_keywords(function: Callable[..., Any], texts: Iterable[str]) -> dict[str, Any]:
    """Convert texts such as "window=128" to the keywords of a member, each by its annotation.

    A bool is true, yes, on, false, no or off; a tuple is 1,2,3, with or without brackets; None is none.

    function: the member function, which makes a named model.
    texts: texts of the form name=value.

    Errors: TypeError, in one line, if a name is unknown (with the nearest name), a text does not fit its annotation, or
    a name is given twice.
    """
    parameters = signature(function).parameters
    keywords: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals or not name:
            raise TypeError(f"{quote(text)} is not a keyword; write name=value")
        check_known_keywords(describe_callable(function), [name], parameters)
        if name in keywords:
            raise TypeError(f"the keyword {name!r} is given twice")
        try:
            keywords[name] = _convert(value, parameters[name].annotation)
        except ValueError:
            kind = parameters[name].annotation
            problem = f"the keyword {quote(name)} of {name_of(function)!r} must be {describe(kind)}, got {quote(value)}"
            raise TypeError(f"{problem}{_advise_composing(value, kind)}") from None
    return keywords
