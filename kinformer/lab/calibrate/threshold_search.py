"""Search for exit thresholds of each layer, for `kinformer calibrate --search`."""

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

ROWS, LEAST = 16, 256  # rows of a batch, and default number of rows
GRID = 11  # default number of thresholds of a layer
By = int | Literal["grid", "coordinates"]  # a number of random vectors, or a search over the rule's own values


class ThresholdSearchResult(NamedTuple):
    """Result of `search_thresholds`: the exit thresholds that were tried, the best ones, and the choice.

    metric: the metric that measures quality; its values are negated if less is better.
    full: quality and layers of the full model, in which no token exits early.
    tried: approximate quality and mean layers of all tried vectors (`ExitScores.measure`).
    candidates: the vector of the highest quality in each range of mean layers, measured in runs with early exits.
    chosen: the candidate with the fewest mean layers among those that lose at most `within` of quality; None if there
        is none.
    """

    metric: Metric
    full: MeasuredThresholds
    tried: tuple[Tensor, Tensor]
    candidates: tuple[MeasuredThresholds, ...]
    chosen: MeasuredThresholds | None

    def value(self, candidate: MeasuredThresholds) -> float:
        """Return a candidate's quality in the metric's own sign, which is not negated.

        candidate: the candidate.
        """
        return _sign(self.metric) * candidate.quality


def rows_of(model: Any, data: Data, split: str, rows: int, length: int) -> list[Any]:
    """Return batches of rows that are spread evenly over a split of the data.

    model: the model that reads them.
    data: the data.
    split: name of the split.
    rows: number of rows.
    length: tokens of a row.

    Errors: ValueError if the split is empty, or if the model does not read such data.
    """
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
    """Search the exit thresholds that use the fewest layers and lose at most `within` of quality.

    The model is left with the thresholds that were measured last, not with the chosen ones.

    model: the model.
    batches: the rows on which thresholds are tried and measured.
    by: number of random vectors of thresholds to try; or "grid" for all combinations of `thresholds` values for each
        layer; or "coordinates" for one layer at a time.
    within: allowed loss of quality against the full model, in units of the metric.
    on_progress: called with the number of measured candidates.
    thresholds: number of values to try for each layer, for "grid" and "coordinates".

    Errors: ValueError for a rule without thresholds, a single layer, a grid that is too large, or if the quality of the
    full model is not finite.
    """
    rule, depth = model.exits.rule, len(model.exits.layers)
    if by == "grid":
        refuse_large_grid(thresholds, depth - 1)  # before the rows are read
    with use_rule(model.exits, NeverExit()):
        measured = evaluate_batches(model, batches)
    full, metric = _candidate((), measured), measured.metric
    if not math.isfinite(full.quality):
        raise ValueError(f"{metric.name} of the full model is {measured.value} on these rows; its weights are damaged")
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
    """Plot quality against mean layers per token: all tried thresholds, the best, and the chosen ones.

    result: the result of the search.
    depth: number of layers.
    """
    sign = _sign(result.metric)
    quality, layers = (values.cpu().tolist() for values in result.tried)
    best = [(candidate.layers, result.value(candidate)) for candidate in result.candidates]
    values, label = [sign * value for value in quality], f"{len(layers):,} tried, computed without early exits"
    curve = [
        PlotLine(layers, values, label, ".", "tab:gray", 0.5),
        PlotLine(
            [x for x, _ in best], [y for _, y in best], "the best by mean layers, with early exits", "o-", "tab:blue"
        ),
    ]
    if result.chosen is not None:
        curve.append(PlotLine([result.chosen.layers], [result.value(result.chosen)], "chosen", "D", "tab:red"))
    xlabel, levels = f"mean layers per token, of {depth}", ((result.value(result.full), "all layers"),)
    return Plot("", xlabel, result.metric.name, curve, levels=levels, xlim=(0.9, depth + 0.1))


def result_lines(result: ThresholdSearchResult, depth: int, within: float) -> list[str]:
    """Describe the result of a threshold search: a line for each candidate, and one for the chosen vector.

    result: the result of the search.
    depth: number of layers.
    within: allowed loss of quality.
    """
    name = result.metric.name
    lines = [
        f"thresholds {', '.join(f'{t:.3g}' for t in candidate.threshold)}: {name} {result.value(candidate):.4f}, "
        f"{candidate.layers:.2f} layers"
        for candidate in result.candidates
    ]
    whole = f"{name} with all {depth} layers is {result.value(result.full):.4f}"
    if result.chosen is None:
        tried = f"none of {len(result.tried[1]):,} vectors of thresholds comes within {within:g} of it"
        return [*lines, f"{whole}, and {tried}: no token exits early"]
    summary = f"{result.chosen.layers:.2f} layers on average, with {result.value(result.chosen):.4f}"
    cheapest = f"the thresholds with the fewest layers within {within:g} of it take {summary}"
    return [*lines, f"{whole}; {cheapest}. This is not proven for other data"]


def _sign(metric: Metric) -> int:
    return 1 if metric.better == "more" else -1


def _candidate(threshold: tuple[float, ...], measured: Measurement) -> MeasuredThresholds:
    return MeasuredThresholds(threshold, _sign(measured.metric) * measured.value, measured.extras["layers"])
