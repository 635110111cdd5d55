"""Plots as plain data, which `kinformer.pages.plots` draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import linear_regression, mean
from typing import Any, Literal, NamedTuple

Axes = Literal["", "x", "y", "xy"]
Limits = tuple[float | None, float | None]  # None leaves an end to the data


class PlotLine(NamedTuple):
    """One line of a plot. Lines with the same label share a colour and one entry of the legend.

    x, y: coordinates of the points.
    label: entry in the legend; "" for none.
    style: marker and dash as Matplotlib spells them, such as "o-".
    colour: colour of the line; "" takes the next colour of Matplotlib's cycle.
    alpha: opacity.
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
    """Data of one plot, a pair of axes: with lines, with samples of categories, or with an image.

    title, xlabel, ylabel: texts of the plot and its axes.
    lines: the lines.
    samples: for each label, a list with the values of all seeds for each category; they are drawn as dots.
    categories: names of the categories.
    bars: draw the mean of each category as a bar too.
    horizontal: put the categories on the y axis.
    image: a matrix of values from 0, drawn white, to `darkest`, drawn black; the first row is at the top.
    darkest: value of the image that is drawn black.
    points: named points, each with its coordinates; the name is written beside the dot.
    levels: heights of horizontal reference lines, each with a label or "".
    marks: x coordinates of vertical lines.
    ticks: the only values that are written on the x axis.
    log: the axes with a logarithmic scale.
    prefixed: the axes with numbers that are written with k and M.
    xlim, ylim: limits of the axes; None leaves an end to the data.
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
    points: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Sequence[tuple[float, str]] = ()
    marks: Sequence[float] = ()
    ticks: Sequence[float] = ()
    log: Axes = ""
    prefixed: Axes = ""
    xlim: Limits = (None, None)
    ylim: Limits = (None, None)


def seed_mean(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over seeds of each entry of their lists.

    runs: a list of values for each seed.
    """
    return [mean(values) for values in zip(*runs, strict=True)]


def seed_curves(
    x: Sequence[float], curves: Mapping[Any, Sequence[Sequence[float]]], style: str = "o-"
) -> list[PlotLine]:
    """Return a pale line of each seed and a labelled line of their mean, in one colour for each name.

    x: x coordinates of all curves.
    curves: a list of values for each seed, by name.
    style: marker and dash of the mean.
    """
    lines = []
    for number, (name, runs) in enumerate(curves.items()):
        lines += [PlotLine(x, run, "", "-", f"C{number}", 0.3) for run in runs]
        lines.append(PlotLine(x, seed_mean(runs), name, style, f"C{number}"))
    return lines


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent p of y = c x^p, fitted by least squares to the logarithms.

    x, y: coordinates of the points.
    """
    return linear_regression([math.log(value) for value in x], [math.log(value) for value in y]).slope


def by_category(title: str, unit: str, values: Mapping[str, Sequence[float]], **options: Any) -> Plot:
    """Return a plot of values by category, such as the scores of several seeds for each member.

    title: title of the plot.
    unit: unit of the values.
    values: the samples of each category, by its name.
    options: further fields of the plot, such as `bars`.
    """
    labels = (unit, "") if options.get("horizontal") else ("", unit)
    return Plot(title, *labels, samples={"": list(values.values())}, categories=list(values), **options)


def growth_lines(counts: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> list[PlotLine]:
    """Return a line of counts against length for each name, for logarithmic axes.

    Its label has the exponent p with which the counts grow like length^p.

    counts: values for each name, one per length.
    lengths: the lengths.
    """
    return [
        PlotLine(lengths, numbers, f"{name}: L^{slope(lengths, numbers):.2f}", "o-") for name, numbers in counts.items()
    ]
