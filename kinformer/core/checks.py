"""Checks of arguments: each returns the value or raises an error of one line, mostly a ValueError.

The message names the argument, its value and the expected values.
"""

import inspect
import math
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from kinformer.core.keyword_conditions import RECORDED
from kinformer.core.quote import quote

V = TypeVar("V")


def check_option(name: str, value: V, options: Any) -> V:
    """Return a value if it is one of the options.

    name: the parameter's name in the message.
    value: the value.
    options: the allowed values: a Literal or a tuple.
    """
    choices = get_args(options) or tuple(options)
    if value not in choices:
        raise ValueError(f"{name}={quote(value)} is not known; choose {' or '.join(map(repr, choices))}")
    return value


def check_whole_number(name: str, value: int) -> int:
    """Return a value if it is an integer.

    name: the parameter's name in the message.
    value: the value of the parameter.
    """
    return _require(name, value, _is_number(int, value), "a whole number")


def check_finite_number(name: str, value: float) -> float:
    """Return a value if it is a finite number.

    name: the parameter's name in the message.
    value: the value.
    """
    return _require(name, value, _is_number(int | float, value) and abs(value) < math.inf, "a finite number")


def check_at_least(name: str, value: int, least: int) -> int:
    """Return a value if it is an integer of at least `least`.

    name: the parameter's name in the message.
    value: the value.
    least: the smallest allowed value.
    """
    return _require(name, value, _is_number(int, value) and value >= least, f"a whole number of at least {least}")


def check_whole_between(name: str, value: int, minimum: int, maximum: int) -> int:
    """Return a value if it is an integer from `minimum` to `maximum`, both included.

    name: the parameter's name in the message.
    value: the value.
    minimum, maximum: the smallest and the largest allowed value.
    """
    return _require(
        name,
        value,
        _is_number(int, value) and minimum <= value <= maximum,
        f"a whole number from {minimum} to {maximum}",
    )


def check_whole_numbers(name: str, value: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return a value if it is a tuple of integers of at least `least`.

    name: the parameter's name in the message.
    value: the value.
    least: the smallest allowed entry.
    """
    _require(name, value, isinstance(value, tuple), f"a tuple of whole numbers of at least {least}")
    for n, number in enumerate(value):
        check_at_least(f"{name}[{n}]", number, least)
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return a value if it is True or False.

    name: the parameter's name in the message.
    value: the value.
    """
    return _require(name, value, isinstance(value, bool), "True or False")


def check_position_table(name: str, value: Tensor, marks: bool = False) -> Tensor:
    """Return a tensor if it has one integer, or one bool, per row and position [B P].

    name: the parameter's name in the message.
    value: the tensor.
    marks: True to expect dtype bool, False to expect integers.
    """
    dtype = "bool" if marks else "whole numbers"
    _require(name, value, isinstance(value, Tensor), f"a tensor [B P] of {dtype}")
    if value.dim() != 2 or (value.dtype == torch.bool) is not marks or value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype} of shape {list(value.shape)}; give [B P] of {dtype}")
    return value


def check_in_range(name: str, value: float, low: float, high: float, *, open_end: bool = False) -> float:
    """Return a value if it is a number from `low` to `high`.

    name: the parameter's name in the message.
    value: the value.
    low, high: the limits; `high` may be infinite.
    open_end: if True, `high` itself is excluded.
    """
    end = "up" if high == math.inf else f"to below {high:g}" if open_end else f"to {high:g}"
    good = _is_number(int | float, value) and low <= value <= high and not (open_end and value == high)
    return _require(name, value, good, f"a number from {low:g} {end}")


def check_strictly_between(name: str, value: float, low: float, high: float) -> float:
    """Return a value if it is a number between `low` and `high`, both excluded.

    name: the parameter's name in the message.
    value: the value.
    low, high: the limits.
    """
    good = _is_number(int | float, value) and low < value < high
    return _require(name, value, good, f"a number above {low:g} and below {high:g}")


def check_probability(name: str, value: float) -> float:
    """Return a value if it is a dropout probability, from 0 to below 1.

    name: the parameter's name in the message.
    value: the value.
    """
    return check_in_range(name, value, 0, 1, open_end=True)


def check_scale(value: float | None) -> float | None:
    """Return a scale if it is a finite number, or None for the mechanism's default.

    value: the factor of the product of query and key, or None.
    """
    good = value is None or (_is_number(int | float, value) and abs(value) < math.inf)
    return _require("scale", value, good, "a number, or None for 1/sqrt of a key's width")


def check_multiple(name: str, value: int, of: str, size: int) -> int:
    """Return a value if it is a positive multiple of `size`.

    name: the parameter's name in the message.
    value: the value.
    of: the name of `size` in the message.
    size: the divisor.
    """
    if check_at_least(name, value, 1) % check_at_least(of, size, 1):
        raise ValueError(f"{name}={value} is not a multiple of {of}={size}; change one of them")
    return value


def resolve_head_dim(d: int, heads: int, head_dim: int | None = None) -> int:
    """Return the width of a head: `head_dim` if given, otherwise d / heads.

    d: the width of the layer.
    heads: the number of heads.
    head_dim: the width of a head, or None.
    """
    return (
        check_multiple("d", d, "heads", heads) // heads if head_dim is None else check_at_least("head_dim", head_dim, 1)
    )


def check_unused(why: str, **arguments: tuple[Any, Any]) -> None:
    """Refuse arguments that have no effect.

    why: the condition that disables the arguments, in the message after "has no effect with".
    arguments: for each argument by name its value and its default.

    Errors: ValueError if a value differs from its default.
    """
    for name, (value, default) in arguments.items():
        if value != default and not RECORDED.get():
            raise ValueError(f"{name}={quote(value)} has no effect with {why}; leave it out")


def check_part(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """Return a value if it is an instance of a class of model parts, such as `Bias`.

    name: the parameter's name in the message.
    value: the value.
    kind: the class, or a tuple of classes.
    example: the advice at the end of the message, after "give".
    """
    if not isinstance(value, kind):
        # the repr of a module, a tensor or an array has many lines
        has_many_lines = isinstance(value, nn.Module | Tensor) or hasattr(value, "dtype")
        instance = f"of the type {type(value).__name__}" if has_many_lines else quote(value)
        value_text = f"the class {value.__name__}" if isinstance(value, type) else instance
        raise ValueError(f"{name} is {value_text}; give {example}")
    return value


def check_optional_part(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """Return a value if it is None or an instance of a class of model parts, such as `Bias`.

    name: the parameter's name in the message.
    value: the value.
    kind: the class, or a tuple of classes.
    example: the advice at the end of the message, after "give".
    """
    return value if value is None else check_part(name, value, kind, example)


def check_rows(x: Tensor) -> Tensor:
    """Return x after a check that it is a floating tensor [B, T, D].

    x: the input of a layer.

    Errors: ValueError, with advice, if it is something else.
    """
    if isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point():
        return x
    if not isinstance(x, Tensor):
        is_output = isinstance(getattr(x, "y", None), Tensor)
        actual = f"is of type {type(x).__name__}"
        advice = "pass the value of the other layer, out.y" if is_output else "make it with torch.as_tensor(x)"
        advice += "; Stack([...]) joins layers, as nn.Sequential joins modules" if is_output else ""
    elif x.is_floating_point():
        actual, advice = f"has shape {list(x.shape)}", _advise_dims(x)
    else:
        actual, advice = f"is {x.dtype} of shape {list(x.shape)}", "embed token ids first, or pass x.float()"
    raise ValueError(f"x {actual}, expected a floating tensor [B, T, D]; {advice}")


def check_forward(cls: type) -> None:
    """Raise TypeError if a class of layers writes a `forward` that cannot take x, a state and a context.

    cls: the class.
    """
    code = getattr(vars(cls).get("forward"), "__code__", None)
    if code is not None and code.co_argcount < 4 and not code.co_flags & inspect.CO_VARARGS:
        names = ", ".join(code.co_varnames[: code.co_argcount])
        raise TypeError(
            f"{cls.__name__} has forward({names}), expected a layer. Write forward(self, x, state, ctx) -> Out"
        )


def check_output(layer: nn.Module, out: V, kind: type, state: Any) -> V:
    """Return the output of a layer if it is an `Out`, with a state if the layer got one.

    layer: the layer.
    out: its output.
    kind: the class Out.
    state: the state that the layer got, or None.

    Errors: TypeError for another output, such as a tensor. TypeError for a missing state, because the next chunk of a
    layer that reads other tokens would be wrong without a word.
    """
    if not isinstance(out, kind):
        raise TypeError(
            f"{type(layer).__name__}.forward or a hook of it returned {type(out).__name__}, expected Out. Return "
            "kf.Out(y, state), or out._replace(y=tensor) in a hook"
        )
    if state is not None and out.state is None:  # type: ignore[attr-defined]
        raise TypeError(
            f"{type(layer).__name__}.forward got a state and returned none. Return kf.Out(y, state), and write start() "
            "if an output depends on earlier tokens"
        )
    return out


def refuse_mask(pos: Tensor) -> None:
    """Raise ValueError if positions [B T] are a mask of 0 and 1, as transformers passes it.

    Positions are unique within a row, so three of them cannot all be 0 or 1. They are looked at on a CPU only, because
    inspecting numbers would wait for another device.

    pos: the positions.
    """
    if type(pos) is not Tensor or pos.device.type != "cpu" or pos.shape[1] < 3 or torch.compiler.is_compiling():
        return
    if len(pos) and int(pos.max()) <= 1 and int(pos.min()) >= 0:
        raise ValueError("positions are all 0 or 1, as in a mask; pass a mask to Context.of_sequence(x, mask.bool())")


def _advise_dims(x: Tensor) -> str:
    if x.dim() == 2:
        return "pass a single row as x[None], and one token of each row as x[:, None]"
    return "join heads [B, H, T, K] as x.transpose(1, 2).flatten(2)" if x.dim() == 4 else "give 3 dimensions"


def refuse_arguments(layer: nn.Module, state: Any, ctx: Any) -> None:
    """Raise TypeError for a tensor as second or third argument, or for a context of another kind.

    layer: the layer that is called.
    state: the second argument.
    ctx: the third argument.
    """
    name = type(layer).__name__
    tensors = {place: value for place, value in {"state": state, "ctx": ctx}.items() if isinstance(value, Tensor)}
    if tensors and all(value.dim() == 3 for value in tensors.values()):
        advice = "layer(x).y is self-attention; cross-attention reads ctx=Context.of_sequence(x, source=source)"
        raise TypeError(f"{name} got queries, keys or values as further tensors, expected x, state and ctx. {advice}")
    for place, value in tensors.items():
        mask = "mask" if value.dtype == torch.bool else "mask.bool()"
        raise TypeError(
            f"{name} got a tensor as {place}. Mark real tokens by ctx=Context.of_sequence(x, {mask}), and choose keys "
            "by a pattern such as Causal()"
        )
    raise TypeError(f"ctx is of type {type(ctx).__name__}, expected Context. Give Context.of_sequence(x, mask)")


def _is_number(kind: Any, value: object) -> bool:
    """Return True if a value is a number of this kind; a bool is not a number."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _require(name: str, value: V, good: bool, expected: str) -> V:
    if not good:
        raise ValueError(f"{name}={quote(value)}: give {expected}")
    return value
