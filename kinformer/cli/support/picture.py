"""The pictures of a comparison: a file of curves, and drawings that a page can hold in its own colours."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)
from matplotlib.ticker import EngFormatter, NullFormatter  # noqa: E402

from kinformer.cli.support.results import Results  # noqa: E402
from kinformer.pages.saved import saved  # noqa: E402

COLOURS = ("#3d86d1", "#e0762f", "#2fa36b", "#c8508a", "#8f6bd6", "#b08a1e", "#3aa6b0", "#8a8f98")  # on light and dark
INK = "#010203"  # stands for the colour of a page's text
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
Draw = Callable[[Any], None]


def draw(results: Results, path: Path) -> None:
    """The measure on valid against what each may spend, a line per member, and what it is compared with as levels."""
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    stepped = "steps" in results.settings
    _curves(axes, results, "step" if stepped else "minutes")
    if results.settings["split"] == "valid":
        _levels(axes, results)
    axes.set_xlabel("steps" if stepped else "minutes of training")
    axes.set_ylabel(f"{next(iter(results.members[0].measures))} on valid")
    axes.set_title(f"{results.settings['data']}, {results.settings['hardware']}", fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    saved(figure, path, 150)
    pyplot.close(figure)


def colour(place: int) -> str:
    """The colour of a member, the same in every drawing."""
    return COLOURS[place % len(COLOURS)]


def drawings(results: Results) -> Iterator[tuple[str, str]]:
    """Each drawing as SVG, with what it shows in words; its text has the colour of the page."""
    measure, split = next(iter(results.members[0].measures)), results.settings["split"]
    many = " A thin line is one seed." if results.settings["seeds"] > 1 else ""

    def minutes(axes: Any) -> None:
        _curves(axes, results, "minutes")
        axes.set(xlabel="minutes of training", ylabel=f"{measure} on valid")

    def steps(axes: Any) -> None:
        _curves(axes, results, "step")
        axes.set(xlabel="steps", ylabel=f"{measure} on valid")

    def sizes(axes: Any) -> None:
        for place, row in enumerate(results.members):
            half = 0.0 if row.interval is None else (row.interval[1] - row.interval[0]) / 2
            axes.errorbar(row.parameters, row.value, half or None, fmt="o", capsize=4, color=colour(place))
        axes.set(xlabel="parameters", ylabel=f"{measure} on {split}")
        axes.margins(x=0.2)
        _scaled(axes.xaxis, [row.parameters for row in results.members])

    yield f"Quality against time: {measure} on valid.{many}", _svg(minutes)
    yield f"Quality against steps: {measure} on valid.{many}", _svg(steps)
    yield f"Quality against parameters: {measure} on {split}, with its interval where there are seeds.", _svg(sizes)
    if any(row.lengths for row in results.members):
        told = "of one row, forward and backward, on the CPU"
        clock = "milliseconds"
        yield f"Speed against length: {clock} {told}.", _svg(_against(results, "milliseconds", clock))
        yield f"Memory against length: most bytes of tensors {told}.", _svg(_against(results, "peak_bytes", "bytes"))
        if any(at["state_bytes"] for row in results.members for at in row.lengths):
            yield "Decoding state against length: bytes of a row.", _svg(_against(results, "state_bytes", "bytes"))


def _curves(axes: Any, results: Results, against: str) -> None:
    for place, row in enumerate(results.members):
        for n, run in enumerate(row.runs):
            points = run["points"]
            thick = {"markersize": 4, "linewidth": 1.8} if len(row.runs) == 1 else {"markersize": 2.5, "linewidth": 0.9}
            label = {"label": f"{row.name}: {row.value:.2f}"} if n == 0 else {}
            x, y = ([point[name] for point in points] for name in (against, "valid"))
            axes.plot(x, y, color=colour(place), marker="o", **thick, **label)
    last = max(point[against] for row in results.members for run in row.runs for point in run["points"])
    axes.set_xlim(0, 1.05 * last)


def _levels(axes: Any, results: Results) -> None:
    for (name, value), style in zip(results.levels.items(), ("--", ":"), strict=False):
        axes.axhline(value, color="gray", linestyle=style, label=f"{name}: {value:.2f}")


def _against(results: Results, what: str, unit: str) -> Draw:
    def lines(axes: Any) -> None:
        for place, row in enumerate(results.members):
            there = [at for at in row.lengths if at[what]]
            x, y = ([at[name] for at in there] for name in ("length", what))
            axes.plot(x, y, marker="o", markersize=4, color=colour(place))
        axes.set(xlabel="tokens in a row", ylabel=unit)
        axes.set_xscale("log", base=2)
        lengths = sorted({at["length"] for row in results.members for at in row.lengths})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        _scaled(axes.yaxis, [at[what] for row in results.members for at in row.lengths if at[what]])

    return lines


def _scaled(axis: Any, values: Sequence[float]) -> None:
    """Numbers with k and M; logarithmic where they reach over more than a factor of ten."""
    if max(values) > 10 * min(values):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(EngFormatter(sep=""))


def _svg(picture: Draw) -> str:
    """A drawing without a background, of text that stays text, and as wide as there is room for."""
    wanted: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": picture.__qualname__,
        "font.size": 9,
        **dict.fromkeys(INKED, INK),
    }
    with matplotlib.rc_context(wanted):
        figure, axes = pyplot.subplots(figsize=(3.7, 2.8), layout="constrained")
        picture(axes)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, _, rest = text.partition(">")
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest
