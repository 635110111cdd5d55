"""Windows by layer and by head, as Longformer's models have them."""

from typing import TypeVar

from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.pattern import Heads, Pattern
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.dilated import Dilated

T = TypeVar("T")


def one_per_layer(name: str, value: T | tuple[T, ...], depth: int) -> tuple[T, ...]:
    """One for each layer, from the bottom: those given, or the given one for all. ValueError for another count."""
    check_at_least("depth", depth, 1)
    values = value if isinstance(value, tuple) else (value,) * depth
    if len(values) != depth:
        raise ValueError(f"{name}={value} has {len(values)} values for depth={depth} layers; give one, or one each")
    return values


def numbers_per_layer(name: str, value: int | tuple[int, ...], depth: int, least: int) -> tuple[int, ...]:
    """One number for each layer, none below `least`."""
    values = one_per_layer(name, value, depth)
    for number in values:
        check_at_least(name, number, least)
    return values


def growing_windows(window: int | tuple[int, ...], top: int | None, depth: int, least: int) -> tuple[int, ...]:
    """The window of each layer, geometrically from `window` at the bottom to `top` in the highest layer, if given."""
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
    """A window on either side; with a dilation, the first `dilated` heads see that much further with as many keys."""
    if check_at_least("dilated", dilated, 0) == 0 or dilation == 1:
        return Band(window)
    check_in_range("dilated", dilated, 0, heads)
    return Heads(*[Dilated(window, dilation)] * dilated, *[Band(window)] * (heads - dilated))
