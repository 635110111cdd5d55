"""Drawing of `Plot` objects (plain data) with Matplotlib, as image files or as SVG text."""

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)
from matplotlib.ticker import EngFormatter, NullFormatter  # noqa: E402

from kinformer.lab.plot import Plot  # noqa: E402
from kinformer.pages.save_figure import save_figure  # noqa: E402

WIDTH = 0.8  # width of all bars of one category together; categories are 1 apart
# readable on light and dark pages
COLOURS = ("#3d86d1", "#e0762f", "#2fa36b", "#c8508a", "#8f6bd6", "#b08a1e", "#3aa6b0", "#8a8f98")
INK = "#010203"  # placeholder that svg() replaces by the text colour of the page
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


def colour(place: int) -> str:
    """Return the colour of a model in a comparison, the same in every drawing.

    place: index of the model in the comparison; colours repeat after the 8th.
    """
    return COLOURS[place % len(COLOURS)]


def save_plots(
    plots: Sequence[Plot],
    title: str,
    path: Path,
    *,
    columns: int = 0,
    size: tuple[float, float] = (4.8, 4.0),
    share_y: bool = False,
    one_legend: bool = False,
) -> None:
    """Draw several plots side by side into one image file.

    plots: the plots, in reading order.
    title: text above all plots, or "" for none.
    path: the file to write; its ending sets the format.
    columns: number of plots in each row; 0 puts all plots in one row.
    size: width and height of each plot in inches.
    share_y: give the plots of a row the same y axis.
    one_legend: draw one legend below all plots, with the labels of the first plot, instead of one in each.

    Errors: ValueError if Matplotlib does not know the ending of `path`; OSError if the file cannot be written.
    """
    columns = columns or len(plots)
    rows = -(-len(plots) // columns)
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(size[0] * columns, size[1] * rows),
        layout="constrained",
        squeeze=False,
        sharey="row" if share_y else False,
    )
    for axes, plot in zip(grid.flat, plots, strict=False):
        draw_plot(plot, axes, legend=not one_legend)
    for axes in grid.flat[len(plots) :]:  # places of the last row without a plot
        axes.remove()
    if one_legend:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9)
    if title:
        figure.suptitle(fill(title, int(11.5 * size[0] * columns)), fontsize=10)
    save_figure(figure, path)
    pyplot.close(figure)


def svg_figure(drawing: str, label: str, prefix: str) -> str:
    """Return SVG text with a label for screen readers, and with ids that are unique in the page.

    drawing: the drawing, as `svg` returns it.
    label: description of the drawing.
    prefix: beginning of its ids; another drawing of the page has another one.
    """
    unique = re.sub(r'( id="|href="#|url\(#)', rf"\1{prefix}-", drawing)
    return unique.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def svg(plot: Plot) -> str:
    """Return a plot as SVG text for an HTML page.

    The SVG has no fixed size, so it fills the width of its container. Labels stay text and take the text colour of the
    page.

    plot: the plot to draw.
    """
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": plot.xlabel + plot.ylabel,
        "font.size": 9,
        "legend.frameon": False,  # its white box would hide the text colour of a dark page
        **dict.fromkeys(INKED, INK),
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(3.7, 2.8), layout="constrained")
        draw_plot(plot, axes)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, _, rest = text.partition(">")
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest


def draw_plot(plot: Plot, axes: Any, *, legend: bool = True) -> None:
    """Draw a plot into Matplotlib axes.

    plot: the plot to draw.
    axes: the Matplotlib axes.
    legend: draw a legend if a line has a label.
    """
    _draw_lines(plot, axes)
    for number, (label, categories) in enumerate(plot.samples.items()):
        _draw_samples(plot, axes, number, label, categories)
    for number, (name, (x, y)) in enumerate(plot.points.items()):
        axes.plot([x], [y], "o", color=colour(number), markersize=5)
        axes.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
    if plot.image:
        axes.imshow(plot.image, cmap="Blues", vmin=0, vmax=plot.darkest)
    else:
        axes.grid(alpha=0.25)
    for number, (value, label) in enumerate(plot.levels):
        axes.axhline(value, color="tab:gray", linestyle=("--", ":")[number % 2], linewidth=0.9, label=label or None)
    for value in plot.marks:
        axes.axvline(value, color="tab:gray", linestyle="--", linewidth=0.9)
    axes.set(xlabel=plot.xlabel, ylabel=plot.ylabel)
    axes.set_title(fill(plot.title, 50), fontsize=10)
    _scale(plot, axes)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)


def _draw_lines(plot: Plot, axes: Any) -> None:
    colours: dict[str, str] = {}
    for line in plot.lines:
        label = line.label if line.label and line.label not in colours else None
        line_colour = line.colour or colours.get(line.label)
        (drawing,) = axes.plot(
            line.x, line.y, line.style, label=label, color=line_colour, alpha=line.alpha, markersize=4, linewidth=1.4
        )
        if line.label:
            colours.setdefault(line.label, drawing.get_color())
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=drawing.get_color(), alpha=0.15, linewidth=0)


def _draw_samples(plot: Plot, axes: Any, number: int, label: str, categories: Sequence[Sequence[float]]) -> None:
    width = WIDTH / len(plot.samples)
    places = [place + width * (number - (len(plot.samples) - 1) / 2) for place in range(len(categories))]
    if plot.bars:
        bar = axes.barh if plot.horizontal else axes.bar
        heights = [mean(values) if values else 0.0 for values in categories]
        bar(places, heights, 0.9 * width, color=f"C{number}", alpha=0.6, label=label or None)
    dots = [(place, value) for place, values in zip(places, categories, strict=True) for value in values]
    if not plot.bars or len(dots) > len(categories):  # a bar of a single value needs no dot
        x, y = zip(*dots, strict=True)
        points = (y, x) if plot.horizontal else (x, y)
        style = {"color": "black", "markersize": 3} if plot.bars else {"color": f"C{number}", "markersize": 5}
        axes.plot(*points, "o", label=None if plot.bars else label or None, **style)


def _scale(plot: Plot, axes: Any) -> None:
    axes.set(**{f"{axis}scale": "log" for axis in plot.log})
    for axis in plot.prefixed:
        getattr(axes, f"{axis}axis").set_minor_formatter(NullFormatter())
        getattr(axes, f"{axis}axis").set_major_formatter(EngFormatter(sep=""))
    if plot.horizontal:
        axes.set_yticks(range(len(plot.categories)), plot.categories)
        axes.invert_yaxis()
    elif plot.categories:
        axes.set_xticks(range(len(plot.categories)), [fill(name, 14) for name in plot.categories], fontsize=8)
        axes.set_xlim(-0.5, len(plot.categories) - 0.5)
    if plot.ticks:
        axes.set_xticks(plot.ticks, [f"{value:,}" for value in plot.ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
    axes.set(**{name: ends for name in ("xlim", "ylim") if (ends := getattr(plot, name)) != (None, None)})
