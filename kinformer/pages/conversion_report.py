"""The page and the picture of a conversion: its plan, its quality before and after, and its costs."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from kinformer.checkpoint.atomic_files import write
from kinformer.lab.byte_units import size
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.reading_costs import LENGTHS, ReadingCost
from kinformer.lab.plot import Axes, Plot, PlotLine, by_category
from kinformer.pages.html_page import html_page
from kinformer.pages.plots import save_plots, svg, svg_figure

ENDS = (0.9 * LENGTHS[0], 1.1 * LENGTHS[-1])  # of the axis of lengths in every plot
PICTURE, PAGE = "conversion.png", "report.html"
Cells = Sequence[Sequence[str]]


def save_conversion_report(report: ConversionReport, folder: Path) -> None:
    """Write report.html and conversion.png of a conversion.

    report: the record of the conversion.
    folder: the folder of the converted model.

    Errors: OSError if a file cannot be written.
    """
    plots = list(conversion_plots(report))
    if plots:
        save_plots(plots, _title(report), folder / PICTURE, columns=min(3, len(plots)))
    write(folder / PAGE, html_page(_title(report), "".join(_body(report, plots))))


def conversion_plots(report: ConversionReport) -> Iterator[Plot]:
    """Yield the plots of a conversion, for what was measured: quality, layers, speed, state and memory.

    A metric that is no finite number, as after an overflow, has no bar.

    report: the record of the conversion.
    """
    values = {f"{name}\n{value:.4g}": [value] for name, value in report.stages.items() if math.isfinite(value)}
    if values:
        yield by_category("quality on validation data", report.metric, values, bars=True)
    if report.layer_losses:
        layers = range(1, len(report.layer_losses) + 1)
        ticks = layers[:: -(-len(layers) // LAYER_TICKS)]
        line = PlotLine(layers, report.layer_losses, style="o-")
        yield Plot(
            "the source with only one layer converted", "converted layer, 1 at the bottom", "loss", [line], ticks=ticks
        )
    for title, unit, log, value in COSTS:
        points = {name: _points(costs, value) for name, costs in report.costs.items()}
        lines = [PlotLine(*pairs, name, "o-") for name, pairs in points.items() if pairs]
        if lines:
            lowest = None if "y" in log else 0
            yield Plot(title, "tokens read", unit, lines, log=log, prefixed="xy", xlim=ENDS, ylim=(lowest, None))


LAYER_TICKS = 10  # most numbers of layers on an axis
COSTS: tuple[tuple[str, str, Axes, Callable[[ReadingCost], float | None]], ...] = (
    ("state of one row", "bytes", "xy", lambda cost: cost.state),
    ("reading in chunks", "tokens per second", "x", lambda cost: cost.reading),
    ("writing token by token", "tokens per second", "x", lambda cost: cost.writing),
    ("memory of model and reading", "bytes", "x", lambda cost: cost.memory),
)


def _points(
    costs: Sequence[ReadingCost], value: Callable[[ReadingCost], float | None]
) -> tuple[list[float], list[float]] | None:
    """Return the lengths and the measured values; None if none was measured."""
    pairs = [(cost.length, number) for cost in costs if (number := value(cost)) is not None]
    return ([float(x) for x, _ in pairs], [float(y) for _, y in pairs]) if pairs else None


def _title(report: ConversionReport) -> str:
    return f"{report.source} to {report.plan.title}"


def _body(report: ConversionReport, plots: Sequence[Plot]) -> Iterator[str]:
    yield f"<p>{escape(report.plan.promise_text)}</p>\n"
    if report.stages:
        yield f"<h2>Quality</h2>\n<p>{escape(report.metric)} on {escape(report.data)}.</p>\n"
        yield _table(report.quality_cells())
    if report.adaptation:
        words = ", ".join(f"{name} {value}" for name, value in report.adaptation.items())
        yield f'<p class="soft">Adaptation: {escape(words)}</p>\n'
    if plots:
        yield '<div class="drawings">\n'
        for number, plot in enumerate(plots):
            yield f"<figure>{svg_figure(svg(plot), plot.title, f'd{number}')}</figure>\n"
        yield "</div>\n"
    for name, costs in report.costs.items():
        yield f"<h2>Long rows: {escape(name)}</h2>\n{_table(cost_cells(costs))}"
    yield '<h2>Weights</h2>\n<p class="soft">{n} in a name stands for the number of a layer, from 0.</p>\n'
    yield _table(report.plan.fate_cells())
    words = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in report.seconds.items())
    yield f'<p class="soft">Time: {escape(words)}</p>\n' if words else ""


def cost_cells(costs: Sequence[ReadingCost]) -> Cells:
    """Return a table of costs as texts, with its headings in the first row.

    costs: the costs at each length.
    """
    heads = ["tokens", "state", "reading", "writing", "memory"]

    def speed(value: float | None) -> str:
        return "not measured" if value is None else f"{value:,.0f} tokens/s"

    rows = [
        [
            f"{cost.length:,}",
            size(cost.state),
            speed(cost.reading),
            speed(cost.writing),
            "not measured" if cost.memory is None else size(cost.memory),
        ]
        for cost in costs
    ]
    return [heads, *rows]


def _table(cells: Cells) -> str:
    heads, *rows = cells
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'
