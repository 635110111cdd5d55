"""Plots as plain data, which `kinformer.pages.plots` draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import linear_regression, mean
from typing import Any, Literal, NamedTuple

Axes = Literal["", "x", "y", "xy"]
Limits = tuple[float | None, float | None]  # None leaves an end to the data


class PlotLine(NamedTuple):
    """Points of a plot. Lines with the same label share a colour and one entry of the legend.

    style: marker and dash as Matplotlib spells them, such as "o-".
    colour: the next one of Matplotlib's cycle if empty.
    band: the lower and the upper end of a shaded interval.
    """

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    style: str = "-"
    colour: str = ""
    alpha: float = 1.0
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Plot:
    """One pair of axes with lines, with samples of categories, or with an image.

    samples: by label, for each category the values of all seeds, drawn as dots.
    categories: their names. bars: draw the mean of each category as a bar too. horizontal: categories stand on y.
    image: a matrix from 0, white, to `darkest`; the first row is at the top.
    levels: horizontal lines, each with a label or "". marks: vertical lines.
    ticks: the only values that are written on the x axis.
    log: the axes with a logarithmic scale. prefixed: the axes whose numbers are written with k and M.
    """

    title: str
    xlabel: str = ""
    ylabel: str = ""
    lines: Sequence[PlotLine] = ()
    _: KW_ONLY
    samples: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    categories: Sequence[str] = ()
    bars: bool = False
    horizontal: bool = False
    image: Sequence[Sequence[float]] = ()
    darkest: float = 1.0
    levels: Sequence[tuple[float, str]] = ()
    marks: Sequence[float] = ()
    ticks: Sequence[float] = ()
    log: Axes = ""
    prefixed: Axes = ""
    xlim: Limits = (None, None)
    ylim: Limits = (None, None)


def seed_mean(runs: Sequence[Sequence[float]]) -> list[float]:
    """The mean over seeds at each place of their lists."""
    return [mean(values) for values in zip(*runs, strict=True)]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y = c x^p, fitted by least squares in logarithms."""
    return linear_regression([math.log(value) for value in x], [math.log(value) for value in y]).slope


def by_category(title: str, unit: str, values: Mapping[str, Sequence[float]], **options: Any) -> Plot:
    """The samples of each category, in one unit. options: further fields of the plot, such as `bars`."""
    labels = (unit, "") if options.get("horizontal") else ("", unit)
    return Plot(title, *labels, samples={"": list(values.values())}, categories=list(values), **options)


def growth_lines(counts: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> list[PlotLine]:
    """A line for each name, with the exponent of its growth, for logarithmic axes."""
    return [
        PlotLine(lengths, numbers, f"{name}: L^{slope(lengths, numbers):.2f}", "o-") for name, numbers in counts.items()
    ]
