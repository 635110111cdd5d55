"""Window sizes for each layer and head, as in Longformer."""

from typing import TypeVar

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.pattern import Heads, Pattern
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.dilated import Dilated

T = TypeVar("T")


def one_per_layer(name: str, value: T | tuple[T, ...], depth: int) -> tuple[T, ...]:
    """Return one value of a parameter for each layer: the given tuple, or a single value repeated.

    name: name of the parameter in the message.
    value: a value for all layers, or a tuple with one for each.
    depth: number of layers.

    Errors: ValueError if a tuple has another length than `depth`.
    """
    check_at_least("depth", depth, 1)
    values = value if isinstance(value, tuple) else (value,) * depth
    if len(values) != depth:
        raise ValueError(
            f"{name}={value} has the wrong length: got {len(values)}, expected depth={depth}; give one value, or one "
            "for each layer"
        )
    return values


def numbers_per_layer(name: str, value: int | tuple[int, ...], depth: int, least: int) -> tuple[int, ...]:
    """Return one number of a parameter for each layer from the bottom, after checking each.

    name: name of the parameter in the message.
    value: a number for all layers, or a tuple with one for each.
    depth: number of layers.
    least: smallest allowed number.
    """
    values = one_per_layer(name, value, depth)
    for number in values:
        check_at_least(name, number, least)
    return values


def growing_windows(window: int | tuple[int, ...], top: int | None, depth: int, least: int) -> tuple[int, ...]:
    """Return the window of each layer, growing geometrically from `window` to `top` if `top` is given.

    window: window of the lowest layer; without `top`, window of all layers or a tuple with one for each.
    top: window of the highest layer, or None.
    depth: number of layers.
    least: smallest allowed window.

    Errors: ValueError if `window` is a tuple, `top` is given, and there are several layers.
    """
    if top is None or depth == 1:
        return numbers_per_layer("window", window, depth, least)
    if isinstance(window, tuple):
        raise ValueError(
            f"window={window} sets the window of every layer, so top={top} has no effect; add top=none, or give one "
            "number as window="
        )
    check_at_least("window", window, max(least, 1))
    ratio = check_at_least("top", top, max(least, 1)) / window
    return tuple(round(window * ratio ** (n / max(depth - 1, 1))) for n in range(depth))


def window_pattern(window: int, dilation: int, heads: int, dilated: int) -> Pattern:
    """Return a pattern of windows in which the first `dilated` heads have gaps between their keys.

    These heads read as many keys as the others, but `dilation` times as far.

    window: number of keys on either side.
    dilation: distance between the keys of a dilated head; 1 for no dilation.
    heads: number of heads.
    dilated: number of dilated heads.
    """
    if check_at_least("dilated", dilated, 0) == 0 or dilation == 1:
        return Band(window)
    check_in_range("dilated", dilated, 0, heads)
    return Heads(*[Dilated(window, dilation)] * dilated, *[Band(window)] * (heads - dilated))
