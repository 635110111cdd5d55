"""Hints about unknown keywords: classes and functions that answer a wrong keyword with the right one.

`KeywordHints` is for classes, `hint_keywords` for functions. Both keep the signature that editors and mypy see.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

from torch import nn

from kinformer.core.did_you_mean import check_known_keywords

P = ParamSpec("P")
R = TypeVar("R")


class KeywordHints:
    """Mixin of classes whose constructor refuses an unknown keyword with the name to use instead.

    Choose it for a base class of parts, after the other base classes. It looks at keywords before the constructor runs,
    and wraps nothing. If a constructor of this package takes `**kwargs`, the keywords of its base class count too. A
    constructor of other code with `**kwargs` may take any keyword.

    Errors: TypeError, in one line, for an unknown keyword.
    """

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        if keywords and (names := _constructor_keywords(cls)) is not None:
            check_known_keywords(cls.__name__, keywords, names)
        if args and cls.__init__ is object.__init__:  # Python checks this only for classes without __new__
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return super().__new__(cls)


def _constructor_keywords(cls: type) -> set[str] | None:
    """Return the keywords of a constructor; None if any keyword is allowed."""
    names: set[str] = set()
    for base in cls.__mro__:
        if (init := vars(base).get("__init__")) is None:
            continue
        code = getattr(inspect.unwrap(init), "__code__", None)
        if code is None or base is nn.Module:
            break
        names.update(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            break
        if not base.__module__.startswith("kinformer."):
            return None
    return names


def hint_keywords(function: Callable[P, R], further: Collection[str] = ()) -> Callable[P, R]:
    """Decorate a function or method: an unknown keyword is refused with the name to use instead.

    function: the function. It is returned as it is if it takes any keyword.
    further: names that the function takes as `**kwargs`.
    """
    parameters = inspect.signature(function).parameters
    named = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    if len(named) < len(parameters) and not further:
        return function
    names, is_method = (named - {"self"}) | set(further), "self" in named

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in names:
                check_known_keywords(type(args[0]).__name__ if is_method else function.__name__, keywords, names)
        return function(*args, **keywords)

    # torch.compile counts recompilations by code object, and profilers show its name
    code = call.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)  # type: ignore[attr-defined]
    call.__code__ = code  # type: ignore[attr-defined]
    return call
