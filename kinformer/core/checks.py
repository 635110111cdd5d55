"""Checks of what a constructor is given: each returns the value, or raises a ValueError of one line.

The line says what came, what was wanted, and so what to do.
"""

import math
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from kinformer.core.keyword_conditions import RECORDED

V = TypeVar("V")


def check_option(name: str, value: V, options: Any) -> V:
    """One of the values of a Literal, or of a tuple."""
    choices = get_args(options) or tuple(options)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose {' or '.join(map(repr, choices))}")
    return value


def check_whole_number(name: str, value: int) -> int:
    """A whole number."""
    return _require(name, value, _is_number(int, value), "a whole number")


def check_finite_number(name: str, value: float) -> float:
    """Check for a finite number."""
    return _require(name, value, _is_number(int | float, value) and abs(value) < math.inf, "a finite number")


def check_at_least(name: str, value: int, least: int) -> int:
    """A whole number from `least` up."""
    return _require(name, value, _is_number(int, value) and value >= least, f"a whole number of at least {least}")


def check_whole_between(name: str, value: int, minimum: int, maximum: int) -> int:
    """A whole number from `minimum` to `maximum`."""
    return _require(
        name,
        value,
        _is_number(int, value) and minimum <= value <= maximum,
        f"a whole number from {minimum} to {maximum}",
    )


def check_whole_numbers(name: str, value: tuple[int, ...], least: int) -> tuple[int, ...]:
    """A tuple of whole numbers from `least` up."""
    _require(name, value, isinstance(value, tuple), f"a tuple of whole numbers of at least {least}")
    for n, number in enumerate(value):
        check_at_least(f"{name}[{n}]", number, least)
    return value


def check_flag(name: str, value: bool) -> bool:
    """True or False."""
    return _require(name, value, isinstance(value, bool), "True or False")


def check_position_table(name: str, value: Tensor, marks: bool = False) -> Tensor:
    """A tensor by row and position [B P]: whole numbers, or with `marks` True and False."""
    dtype = "bool" if marks else "whole numbers"
    _require(name, value, isinstance(value, Tensor), f"a tensor [B P] of {dtype}")
    if value.dim() != 2 or (value.dtype == torch.bool) is not marks or value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype} of shape {list(value.shape)}; give [B P] of {dtype}")
    return value


def check_in_range(name: str, value: float, low: float, high: float, *, open_end: bool = False) -> float:
    """A number from low to high, `high` itself excluded with `open_end`."""
    end = "up" if high == math.inf else f"below {high:g}" if open_end else f"to {high:g}"
    good = _is_number(int | float, value) and low <= value <= high and not (open_end and value == high)
    return _require(name, value, good, f"a number from {low:g} {end}")


def check_strictly_between(name: str, value: float, low: float, high: float) -> float:
    """A number between low and high, neither of them itself."""
    good = _is_number(int | float, value) and low < value < high
    return _require(name, value, good, f"a number above {low:g} and below {high:g}")


def check_probability(name: str, value: float) -> float:
    """A share that may be dropped: from 0, below 1."""
    return check_in_range(name, value, 0, 1, open_end=True)


def check_scale(value: float | None) -> float | None:
    """The factor of the product of a query and a key, or None for the rule of the mechanism."""
    good = value is None or (_is_number(int | float, value) and abs(value) < math.inf)
    return _require("scale", value, good, "a number, or None for 1/sqrt of a key's width")


def check_multiple(name: str, value: int, of: str, size: int) -> int:
    """A whole number that `size` divides."""
    if check_at_least(name, value, 1) % check_at_least(of, size, 1):
        raise ValueError(f"{name}={value} does not split into {of}={size}; make it a multiple")
    return value


def resolve_head_dim(d: int, heads: int, head_dim: int | None = None) -> int:
    """The width of a head: d / heads unless given."""
    return (
        check_multiple("d", d, "heads", heads) // heads if head_dim is None else check_at_least("head_dim", head_dim, 1)
    )


def check_unused(why: str, **arguments: tuple[Any, Any]) -> None:
    """Refuse arguments that have no effect: by name the value that was given, and the default."""
    for name, (value, default) in arguments.items():
        if value != default and not RECORDED.get():
            raise ValueError(f"{name}={value!r} has no effect with {why}; leave it out")


def check_part(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """An instance of a kind of part; the example says what to give."""
    if not isinstance(value, kind):
        # a module prints as many lines
        instance = f"of the kind {type(value).__name__}" if isinstance(value, nn.Module) else f"{value!r}"
        value_text = f"the class {value.__name__}" if isinstance(value, type) else instance
        raise ValueError(f"{name} is {value_text}; give {example}")
    return value


def check_optional_part(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """The same of what may be left out: None is none."""
    return value if value is None else check_part(name, value, kind, example)


def _is_number(kind: Any, value: object) -> bool:
    """Is this a number of a kind? True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _require(name: str, value: V, good: bool, expected: str) -> V:
    if not good:
        raise ValueError(f"{name}={value!r}: give {expected}")
    return value
