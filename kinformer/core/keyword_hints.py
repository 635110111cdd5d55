"""Hints about wrong calls: answers to an unknown keyword, and to a result that is used as a tensor.

`KeywordHints` is for the keywords of classes, `hint_keywords` for functions. Both keep the signature that editors and
mypy see. `hint_value` is for named tuples that a call returns.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn

from kinformer.core.did_you_mean import check_known_keywords

P = ParamSpec("P")
R = TypeVar("R")
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OPERATORS = "add sub mul truediv floordiv matmul pow".split()
_METHODS = ("neg", "abs", "float", "int", *_OPERATORS, *(f"r{name}" for name in _OPERATORS))


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
    places = [name for name, parameter in parameters.items() if parameter.kind in _BY_PLACE]
    takes_any_number = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values())

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        if len(args) > len(places) and not takes_any_number:
            raise TypeError(
                f"{_owner(function, args, is_method)} got {len(args) - is_method} arguments without a name, expected "
                f"{', '.join(places[is_method:])}. Name the others"
            )
        for name in keywords:
            if name not in names:
                check_known_keywords(_owner(function, args, is_method), keywords, names)
        return function(*args, **keywords)

    # torch.compile counts recompilations by code object, and profilers show its name
    code = call.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)  # type: ignore[attr-defined]
    call.__code__ = code  # type: ignore[attr-defined]
    return call


def _owner(function: Callable[..., Any], args: tuple[Any, ...], is_method: bool) -> str:
    return type(args[0]).__name__ if is_method else function.__name__


def hint_value(kind: type, says: str, value: str, further: str = "", **advice: str) -> None:
    """Let a NamedTuple refuse arithmetic and other uses as a tensor, with advice.

    Otherwise `out * 2` would be the tuple twice. The methods are set outside of the class, so that mypy knows its
    names.

    kind: the class.
    says: the beginning of each message, such as "a layer returns Out".
    value: the expression of the tensor, such as "layer(x).y".
    further: the end of the message about a use as a tensor.
    advice: the expression to write for a missing attribute of this name.
    """
    message = f"{says}, which holds more than a tensor; use its value: {value}{further}"

    def refuse(*call: object) -> Any:
        raise TypeError(message)

    def refuse_name(result: object, name: str) -> Any:
        expression = advice.get(name) or (f"{value}.{name}" if hasattr(Tensor, name) else None)
        raise AttributeError(f"{says}, which has no {name!r}" + (f"; write {expression}" if expression else ""))

    def item(result: Any, index: Any) -> Any:
        return refuse() if isinstance(index, tuple) else tuple.__getitem__(result, index)

    hints = dict.fromkeys(_METHODS, refuse) | {"getattr": refuse_name, "getitem": item}

    for method, hint in hints.items():
        setattr(kind, f"__{method}__", hint)
    setattr(kind, "__torch_function__", classmethod(refuse))  # noqa: B010  (functions of PyTorch call it)
