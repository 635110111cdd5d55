"""The run-time check of the library's annotations: beartype, under jaxtyping's import hook.

beartype cannot take a NamedTuple that is Generic (such as Out) as an annotation, so here one stands for "an instance of
this class"; what its fields hold is checked where the fields are made and used.
"""

import collections.abc
import functools
import inspect
import operator
import os
import types
from collections.abc import Callable
from typing import Annotated, Any, Generic, Union, get_args, get_origin

import jaxtyping
import typer
from beartype import BeartypeConf, beartype
from beartype.vale import IsInstance
from jaxtyping import AbstractArray, _decorator, config
from jaxtyping._storage import pop_shape_memo, push_shape_memo

THEIRS = jaxtyping.jaxtyped
# an int will do for a float, as for every type checker
numbers = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checking at each call that arguments and result are what its annotations say."""
    own = function.__annotations__
    function.__annotations__ = {name: plain(_resolved(hint, function)) for name, hint in own.items()}
    try:
        return numbers(function)
    finally:
        function.__annotations__ = own  # commands and keywords are read from them


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


def jaxtyped(function: Any = None, **options: Any) -> Any:
    """What jaxtyping's import hook puts around every function, without what only its messages and `"{name}"` want.

    jaxtyping binds the arguments of each call to their names and checks them twice, which takes half of the time of
    tests. Here they are checked once, in one scope of sizes, which a function without arrays does not need. Classes,
    properties and the like are taken apart by jaxtyping, which asks this for their functions. A function inside a
    function would be prepared anew at each call of the outer one, which took a tenth of the time. Only the long
    run checks it.
    """
    if function is None:
        return functools.partial(jaxtyped, **options)
    if (
        os.environ.get("KINFORMER_PROVE") != "1"
        and inspect.isfunction(function)
        and function.__module__.startswith("kinformer.")
        and "<locals>" in function.__qualname__
    ):
        return function
    plainly = inspect.isfunction(function) and not inspect.isgeneratorfunction(function)
    if not plainly or hasattr(function, "__no_type_check__"):
        return THEIRS(function, **options)
    checked = options["typechecker"](function)
    sized = any(_sized(_resolved(hint, function)) for hint in function.__annotations__.values())

    @functools.wraps(function)
    def checked_call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if not sized:
            return checked(*args, **kwargs)
        push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return checked_call


def _resolved(hint: Any, function: Callable[..., Any]) -> Any:
    """An annotation whose names in quotes are looked up; any, where one is known to type checkers alone."""
    return _decorator._destring_annotation(hint, function.__globals__)


def _sized(hint: Any) -> bool:
    """Is there an array of some shape in an annotation?"""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(_sized(inner) for inner in get_args(hint))


def install(module: str) -> None:
    """From now on what is imported of a module checks its annotations."""
    jaxtyping.jaxtyped = _decorator.jaxtyped = jaxtyped
    jaxtyping.install_import_hook(module, f"{__name__}.{check.__name__}")
