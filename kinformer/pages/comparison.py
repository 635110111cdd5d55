"""Plots of a comparison of models: an image file of learning curves, and SVG drawings for a report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinformer.lab.plot import Axes, Plot, PlotLine, by_category
from kinformer.pages.comparison_results import Results, point_text, value_text
from kinformer.pages.plots import colour, save_plots, svg


def save_curves(results: Results, path: Path) -> None:
    """Draw the learning curves of the compared models: validation metric against steps or minutes.

    Each training is one line. Reference levels, such as the bits per byte of a compressor, are horizontal lines.

    results: the results of the comparison.
    path: the file to write; its ending sets the format.
    """
    settings = results.settings
    against, xlabel = ("step", "steps") if "steps" in settings else ("minutes", "minutes of training")
    levels = [(value, f"{name}: {value:.2f}") for name, value in results.levels.items()]
    measure, title = next(iter(results.members[0].measures)), f"{settings['data']}, {settings['hardware']}"
    lines, end = _curves(results, against)
    plot = Plot(
        title,
        xlabel,
        f"{measure} on validation data",
        lines,
        levels=levels if settings["split"] == "valid" else (),
        xlim=(0, end),
    )
    save_plots((plot,), "", path, size=(9, 5), one_legend=True)


def save_grid(results: Results, path: Path) -> None:
    """Draw the validation metric of each member at each point of the grid; without a grid, draw nothing.

    results: the results of the comparison.
    path: the file to write; its ending sets the format.
    """
    if plots := list(grid_plots(results)):
        measure = next(iter(results.members[0].measures))
        title, bars = f"{measure} on validation data, {results.settings['data']}", plots[0].horizontal
        size = (8.0, max(3.6, 0.3 * len(plots[0].categories))) if bars else (4.8, 3.6)
        save_plots(plots, title, path, columns=min(1 if bars else 3, len(plots)), size=size, share_y=not bars)


def grid_plots(results: Results) -> Iterator[Plot]:
    """Yield the plots of a grid: one for all members if one value varies, otherwise one for each member.

    If two values vary, each line is a value of the second. If more vary, each point of the grid has a line of its own.

    results: the results of the comparison.
    """
    axes = {name: values for name, values in results.settings.get("grid", {}).items() if len(values) > 1}
    if not axes or not results.members[0].grid:
        return
    measure, (first, *others) = next(iter(results.members[0].measures)), axes
    names = [value_text(value) for value in axes[first]]
    if not others:
        lines = [_grid_line(row.grid, row.name, colour(place)) for place, row in enumerate(results.members)]
        yield Plot("", first, measure, lines, categories=names)
        return
    for row in results.members:
        if len(others) == 1:
            by_value = {
                value: [entry for entry in row.grid if entry["point"][others[0]] == value] for value in axes[others[0]]
            }
            lines = [_grid_line(entries, f"{others[0]}={value_text(value)}") for value, entries in by_value.items()]
            yield Plot(row.name, first, measure, lines, categories=names)
        else:
            means = {
                point_text({name: entry["point"][name] for name in axes}): [entry["mean"]]
                for entry in row.grid
                if entry["mean"] is not None
            }
            yield by_category(row.name, measure, means, horizontal=True)


def _grid_line(entries: Sequence[Mapping[str, Any]], label: str, line_colour: str = "") -> PlotLine:
    """Return a line over the values of the first axis, without points whose loss was not finite."""
    points = [(place, entry["mean"]) for place, entry in enumerate(entries) if entry["mean"] is not None]
    return PlotLine([x for x, _ in points], [y for _, y in points], label, "o-", line_colour)


def drawings(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the drawings of a report as pairs of a description and SVG text.

    results: the results of the comparison.
    """
    measure = next(iter(results.members[0].measures))
    measured = "test data" if results.settings["split"] == "test" else "validation data"
    many = " Each pale line is one seed." if results.settings["seeds"] > 1 else ""
    for plot in grid_plots(results):
        of = f" of {plot.title}" if plot.title else ""
        yield f"Grid{of}: {measure} on validation data at each point.", svg(replace(plot, title=""))
    for against, xlabel, name in (("minutes", "minutes of training", "time"), ("step", "steps", "steps")):
        lines, end = _curves(results, against)
        plot = Plot(
            "", xlabel, f"{measure} on validation data", [line._replace(label="") for line in lines], xlim=(0, end)
        )
        yield f"Quality against {name}: {measure} on validation data.{many}", svg(plot)
    description = f"Quality against parameters: {measure} on {measured}, with intervals if there are several seeds."
    yield description, svg(_sizes(results, f"{measure} on {measured}"))
    if any(row.lengths for row in results.members):
        setting = "for one row, forward and backward, on the CPU"
        clock = "milliseconds"
        yield f"Speed against length: {clock} {setting}.", svg(_against_length(results, "milliseconds", clock))
        memory = _against_length(results, "peak_bytes", "bytes")
        yield f"Memory against length: peak bytes of tensors {setting}.", svg(memory)
        if any(at["state_bytes"] for row in results.members for at in row.lengths):
            state = _against_length(results, "state_bytes", "bytes")
            yield "Decoding state against length: bytes per row.", svg(state)


def _curves(results: Results, against: str) -> tuple[list[PlotLine], float]:
    """Return one line for each seed of each member, and the end of the x axis."""
    lines = []
    for place, row in enumerate(results.members):
        for run in row.runs:
            x, y = ([point[name] for point in run["points"]] for name in (against, "valid"))
            lines.append(
                PlotLine(x, y, f"{row.name}: {row.value:.2f}", "o-", colour(place), 1 if len(row.runs) == 1 else 0.6)
            )
    return lines, 1.05 * max(max(line.x) for line in lines)


def _sizes(results: Results, ylabel: str) -> Plot:
    lines = []
    for place, row in enumerate(results.members):
        lines.append(PlotLine([row.parameters], [row.value], "", "o", colour(place)))
        if row.interval is not None:
            lines.append(PlotLine([row.parameters] * 2, row.interval, "", "_-", colour(place)))
    sizes = [row.parameters for row in results.members]
    return Plot("", "parameters", ylabel, lines, prefixed="x", log="x" if _is_wide(sizes) else "", xlim=_margins(sizes))


def _against_length(results: Results, quantity: str, unit: str) -> Plot:
    lines, lengths = [], sorted({at["length"] for row in results.members for at in row.lengths})
    for place, row in enumerate(results.members):
        points = [(at["length"], at[quantity]) for at in row.lengths if at[quantity]]
        lines.append(PlotLine([x for x, _ in points], [y for _, y in points], "", "o-", colour(place)))
    log: Axes = "xy" if _is_wide([y for line in lines for y in line.y]) else "x"
    return Plot("", "tokens in a row", unit, lines, log=log, prefixed="y", ticks=lengths)


def _is_wide(values: Sequence[float]) -> bool:
    """Whether the largest value is more than 10 times the smallest, so that a logarithmic scale is clearer."""
    return max(values) > 10 * min(values)


def _margins(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis with a margin of a fifth of its width on either side."""
    low, high = min(values), max(values)
    if _is_wide(values):
        margin = (high / low) ** 0.2
        return low / margin, high * margin
    margin = 0.2 * (high - low) or 0.05 * high
    return low - margin, high + margin
