"""Thresholds by layer, as `kinformer calibrate --search` finds them: tried, measured where tokens leave, and chosen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from kinformer.core.model import Metric
from kinformer.decoding.consistency import use_rule
from kinformer.lab.calibrate.search_methods import (
    MeasuredThresholds,
    coordinate_search,
    grid_search,
    random_search,
    refuse_large_grid,
    score_exits,
)
from kinformer.lab.data.batches import device_of, to_device
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import open_stream
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.evaluate import Measurement, evaluate_batches
from kinformer.nn.exits.never_exit import NeverExit

ROWS, LEAST = 16, 256  # rows of a batch, and of all of them where none is said
GRID = 11  # thresholds of a layer where none is said
By = int | Literal["grid", "coordinates"]  # so many vectors that are drawn, or what is tried of the rule's own values


class ThresholdSearchResult(NamedTuple):
    """What a search found.

    metric: what quality is; of one that is better if less, quality is below 0.
    full: what it is worth if nobody leaves.
    tried: quality and layers of all vectors that were tried, as read off states that nobody left.
    kept: the best of each segment of cost by that, each as measured where tokens leave by it.
    chosen: of these, the cheapest that comes within what was allowed of `full`; None where none is.
    """

    metric: Metric
    full: MeasuredThresholds
    tried: tuple[Tensor, Tensor]
    candidates: tuple[MeasuredThresholds, ...]
    chosen: MeasuredThresholds | None

    def value(self, candidate: MeasuredThresholds) -> float:
        """Its quality in the metric's own unit."""
        return _sign(self.metric) * candidate.quality


def rows_of(model: Any, data: Data, split: str, rows: int, length: int) -> list[Any]:
    """Batches of a split, from all over it; ValueError where it is empty, or the model does not read such data."""
    part = getattr(data, split)
    if not len(part):
        raise ValueError(f"the {split} split of {data.name} is empty; give another --split, or more data")
    split_data = cast(Data, replace(cast(Any, data), train=part))
    windows = cast(RandomWindows, open_stream(model, split_data, ROWS, length, 0, rows * length))
    return [to_device(device_of(model), windows.at(step)) for step in range(-(-rows // ROWS))]


def search_thresholds(
    model: Any,
    batches: Sequence[Any],
    by: By,
    within: float,
    on_progress: Callable[[int], None],
    *,
    thresholds: int = GRID,
) -> ThresholdSearchResult:
    """The thresholds of a model with exits that do best on these rows; it leaves by the last that was measured.

    by: how many vectors are drawn, or "grid" or "coordinates": so many `thresholds` of each layer in every combination,
        or layer by layer.

    Errors: ValueError for a rule without thresholds, a single layer, a grid that is too large, and a model whose full
    quality is no number.
    """
    rule, depth = model.exits.rule, len(model.exits.layers)
    if by == "grid":
        refuse_large_grid(thresholds, depth - 1)  # before the rows are read
    with use_rule(model.exits, NeverExit()):
        measured = evaluate_batches(model, batches)
    full, metric = _candidate((), measured), measured.metric
    if not math.isfinite(full.quality):
        raise ValueError(f"{metric.name} of the full model is {measured.value} on these rows; its weights are spoiled")
    tried: list[tuple[Tensor, Tensor]] = []

    def measure(vectors: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(table.measure(vectors))
        return tried[-1]

    table = score_exits(model, batches, right=metric.better == "more")
    if by == "grid":
        best = grid_search(measure, rule.grid(thresholds), depth)
    elif by == "coordinates":
        best = coordinate_search(measure, rule.grid(thresholds), depth, least=full.quality - within)
    else:
        best = random_search(measure, depth, draws=by)
    candidates = []
    for candidate in best:
        rule.leave_at(candidate.threshold)
        candidates.append(_candidate(candidate.threshold, evaluate_batches(model, batches)))
        on_progress(len(candidates))
    good = [candidate for candidate in candidates if candidate.quality >= full.quality - within]
    quality, layers = (torch.cat(column) for column in zip(*tried, strict=True))
    chosen = min(good, key=lambda candidate: candidate.layers, default=None)
    return ThresholdSearchResult(metric, full, (quality, layers), tuple(candidates), chosen)


def search_plot(result: ThresholdSearchResult, depth: int) -> Plot:
    """Quality against mean layers: all that was tried, the best at each cost, the full model, and the choice."""
    sign = _sign(result.metric)
    quality, layers = (values.cpu().tolist() for values in result.tried)
    best = [(candidate.layers, result.value(candidate)) for candidate in result.candidates]
    values, label = [sign * value for value in quality], f"{len(layers):,} tried, of states that nobody left"
    curve = [
        PlotLine(layers, values, label, ".", "tab:gray", 0.5),
        PlotLine([x for x, _ in best], [y for _, y in best], "the best at each cost, tokens leaving", "o-", "tab:blue"),
    ]
    if result.chosen is not None:
        curve.append(PlotLine([result.chosen.layers], [result.value(result.chosen)], "chosen", "D", "tab:red"))
    xlabel, levels = f"layers a token takes on average, of {depth}", ((result.value(result.full), "all layers"),)
    return Plot("", xlabel, result.metric.name, curve, levels=levels, xlim=(0.9, depth + 0.1))


def result_lines(result: ThresholdSearchResult, depth: int, within: float) -> list[str]:
    """What is said of it, a line for each kept vector, and of the choice."""
    name = result.metric.name
    lines = [
        f"thresholds {', '.join(f'{t:.3g}' for t in candidate.threshold)}: {name} {result.value(candidate):.4f}, "
        f"{candidate.layers:.2f} layers"
        for candidate in result.candidates
    ]
    whole = f"{name} of all {depth} layers is {result.value(result.full):.4f}"
    if result.chosen is None:
        tried = f"none of {len(result.tried[1]):,} comes within {within:g} of it"
        return [*lines, f"{whole}, and {tried}: no token leaves early"]
    summary = f"{result.chosen.layers:.2f} layers in the mean at {result.value(result.chosen):.4f}"
    cheapest = f"the cheapest within {within:g} of it takes {summary}"
    return [*lines, f"{whole}; {cheapest}, which nothing proves of other data"]


def _sign(metric: Metric) -> int:
    return 1 if metric.better == "more" else -1


def _candidate(threshold: tuple[float, ...], measured: Measurement) -> MeasuredThresholds:
    return MeasuredThresholds(threshold, _sign(measured.metric) * measured.value, measured.extras["layers"])
