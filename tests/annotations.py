"""The run-time check of the library's annotations: beartype, under jaxtyping's import hook.

beartype cannot take a NamedTuple that is Generic (such as Out) as an annotation, so here one stands for "an instance of
this class"; what its fields hold is checked where the fields are made and used.
"""

import collections.abc
import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Annotated, Any, Generic, Union, get_args, get_origin

import typer
from beartype import BeartypeConf, beartype
from beartype.vale import IsInstance

numbers = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float, as for every type checker


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checking at each call that arguments and result are what its annotations say."""
    function.__annotations__ = {name: plain(hint) for name, hint in function.__annotations__.items()}
    return numbers(function)


def plain(hint: Any) -> Any:
    """An annotation with every generic NamedTuple in it replaced by an instance check of its class."""
    if hint is typer.Context:  # a command that wants it is handed its parent
        return typer.Context.__base__
    origin = get_origin(hint) or hint
    if inspect.isclass(origin) and issubclass(origin, tuple) and issubclass(origin, Generic):
        return Annotated[tuple, IsInstance[origin]]
    inner = tuple(plain(argument) for argument in get_args(hint))
    if inner == get_args(hint) or origin is collections.abc.Callable:
        return hint
    return functools.reduce(operator.or_, inner) if origin in (Union, types.UnionType) else origin[inner]
