"""Checks of what a constructor is given: each returns the value, or raises a ValueError of one line.

The line says what came, what was wanted, and so what to do.
"""

import math
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

V = TypeVar("V")


def one_of(name: str, value: V, options: Any) -> V:
    """One of the values of a Literal, or of a tuple."""
    choices = get_args(options) or tuple(options)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose {' or '.join(map(repr, choices))}")
    return value


def whole(name: str, value: int) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r}: give a whole number")
    return value


def at_least(name: str, value: int, least: int) -> int:
    """A whole number from `least` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
    return value


def from_to(name: str, value: int, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: give a whole number from {least} to {most}")
    return value


def whole_numbers(name: str, value: tuple[int, ...], least: int) -> tuple[int, ...]:
    """A tuple of whole numbers from `least` up."""
    if not isinstance(value, tuple):
        raise ValueError(f"{name}={value!r}: give a tuple of whole numbers of at least {least}")
    for n, one in enumerate(value):
        at_least(f"{name}[{n}]", one, least)
    return value


def a_flag(name: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: give True or False")
    return value


def a_table(name: str, value: Tensor, marks: bool = False) -> Tensor:
    """A tensor by row and position [B P]: whole numbers, or with `marks` True and False."""
    what = "bool" if marks else "whole numbers"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}={value!r}: give a tensor [B P] of {what}")
    if value.dim() != 2 or (value.dtype == torch.bool) is not marks or value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype} of shape {list(value.shape)}; give [B P] of {what}")
    return value


def within(name: str, value: float, low: float, high: float, *, open_end: bool = False) -> float:
    """A number from low to high, `high` itself excluded with `open_end`."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good or (open_end and value == high):
        end = "up" if high == math.inf else f"below {high:g}" if open_end else f"to {high:g}"
        raise ValueError(f"{name}={value!r}: give a number from {low:g} {end}")
    return value


def inside(name: str, value: float, low: float, high: float) -> float:
    """A number between low and high, neither of them itself."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low < value < high:
        raise ValueError(f"{name}={value!r}: give a number above {low:g} and below {high:g}")
    return value


def a_probability(name: str, value: float) -> float:
    """A share that may be dropped: from 0, below 1."""
    return within(name, value, 0, 1, open_end=True)


def a_scale(value: float | None) -> float | None:
    """The factor of the product of a query and a key, or None for the rule of the mechanism."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if value is not None and not good:
        raise ValueError(f"scale={value!r}: give a number, or None for 1/sqrt of a key's width")
    return value


def multiple(name: str, value: int, of: str, size: int) -> int:
    """A whole number that `size` divides."""
    if at_least(name, value, 1) % at_least(of, size, 1):
        raise ValueError(f"{name}={value} does not split into {of}={size}; make it a multiple")
    return value


def head_width(d: int, heads: int, head_dim: int | None = None) -> int:
    """The width of a head: d / heads unless given."""
    return multiple("d", d, "heads", heads) // heads if head_dim is None else at_least("head_dim", head_dim, 1)


def a_pattern(name: str, value: Any) -> Any:
    """A Pattern: which keys may be read."""
    from kinformer.core.pattern import Pattern

    return a_part(name, value, Pattern, "a pattern, such as Causal() & Band(64)")


def unread(why: str, **given: tuple[Any, Any]) -> None:
    """Nothing but defaults in what nobody reads: by name the value that came, and its default."""
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(f"{name}={value!r} is not read with {why}; leave it out")


def a_part(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """An instance of a kind of part; the example says what to give."""
    if not isinstance(value, kind):
        # a module prints as many lines
        one = f"of the kind {type(value).__name__}" if isinstance(value, nn.Module) else f"{value!r}"
        what = f"the class {value.__name__}" if isinstance(value, type) else one
        raise ValueError(f"{name} is {what}; give {example}")
    return value


def if_given(name: str, value: V, kind: type | tuple[type, ...], example: str) -> V:
    """The same of what may be left out: None is none."""
    return value if value is None else a_part(name, value, kind, example)
