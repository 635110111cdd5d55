"""growth: how numbers grow with a length, drawn alike in every claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from kinformer.lab.claims.support.verdict import slope


def draw_growth(found: Mapping[str, Sequence[float]], lengths: Sequence[int], axes: Any) -> None:
    """A line for each name, with the exponent of its growth."""
    for name, numbers in found.items():
        axes.loglog(lengths, numbers, "o-", label=f"{name}: L^{slope(lengths, numbers):.2f}")
    ticks(axes, lengths)
    axes.legend()


def ticks(axes: Any, values: Sequence[int]) -> None:
    """These values of a logarithmic axis, and no others."""
    axes.set_xticks(values, [f"{n:,}" for n in values])
    axes.minorticks_off()
