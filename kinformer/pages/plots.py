"""Draws the plots of a claim."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from kinformer.lab.claims.support.plot import Plot
from kinformer.pages.saved import saved

WIDTH = 0.8  # of all bars of a category


def save_plots(plots: Sequence[Plot], title: str, path: Path) -> None:
    """Draw plots side by side into a file.

    Errors: ValueError for an ending that Matplotlib does not know; OSError, in one line, if the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (4.8 * len(plots), 4)
    figure, rows = pyplot.subplots(1, len(plots), figsize=size, layout="constrained", squeeze=False)
    for axes, plot in zip(rows[0], plots, strict=True):
        draw_plot(plot, axes)
    figure.suptitle(fill(title, 55 * len(plots)), fontsize=10)
    saved(figure, path)
    pyplot.close(figure)


def draw_plot(plot: Plot, axes: Any) -> None:
    """Draw a plot into Matplotlib's axes."""
    _draw_lines(plot, axes)
    for number, (label, categories) in enumerate(plot.samples.items()):
        _draw_samples(plot, axes, number, label, categories)
    if plot.image:
        axes.imshow(plot.image, cmap="Blues", vmin=0, vmax=plot.darkest)
    for value, label in plot.levels:
        axes.axhline(value, color="tab:gray", linestyle="--", linewidth=0.8, label=label or None)
    for value in plot.marks:
        axes.axvline(value, color="tab:gray", linestyle="--", linewidth=0.8)
    axes.set(xlabel=plot.xlabel, ylabel=plot.ylabel)
    axes.set_title(plot.title, fontsize=10)
    _scale(plot, axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)


def _draw_lines(plot: Plot, axes: Any) -> None:
    colours: dict[str, str] = {}
    for line in plot.lines:
        label = line.label if line.label and line.label not in colours else None
        colour = line.colour or colours.get(line.label)
        (drawing,) = axes.plot(line.x, line.y, line.style, label=label, color=colour, alpha=line.alpha, markersize=4)
        if line.label:
            colours.setdefault(line.label, drawing.get_color())
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=drawing.get_color(), alpha=0.15, linewidth=0)


def _draw_samples(plot: Plot, axes: Any, number: int, label: str, categories: Sequence[Sequence[float]]) -> None:
    width = WIDTH / len(plot.samples)
    places = [place + width * (number - (len(plot.samples) - 1) / 2) for place in range(len(categories))]
    if plot.bars:
        bar = axes.barh if plot.horizontal else axes.bar
        heights = [mean(values) for values in categories]
        bar(places, heights, width, color=f"C{number}", alpha=0.6, label=label or None)
    dots = [(place, value) for place, values in zip(places, categories, strict=True) for value in values]
    if not plot.bars or len(dots) > len(categories):  # a bar of a single value needs no dot
        x, y = zip(*dots, strict=True)
        points = (y, x) if plot.horizontal else (x, y)
        style = {"color": "black", "markersize": 3} if plot.bars else {"color": f"C{number}", "markersize": 5}
        axes.plot(*points, "o", label=None if plot.bars else label or None, **style)


def _scale(plot: Plot, axes: Any) -> None:
    axes.set(**{f"{axis}scale": "log" for axis in plot.log})
    if plot.horizontal:
        axes.set_yticks(range(len(plot.categories)), plot.categories)
        axes.invert_yaxis()
    elif plot.categories:
        axes.set_xticks(range(len(plot.categories)), [fill(name, 14) for name in plot.categories], fontsize=8)
        axes.set_xlim(-0.5, len(plot.categories) - 0.5)
    if plot.ticks:
        axes.set_xticks(plot.ticks, [f"{value:,}" for value in plot.ticks])
        axes.minorticks_off()
    axes.set(**{name: ends for name in ("xlim", "ylim") if (ends := getattr(plot, name)) != (None, None)})
