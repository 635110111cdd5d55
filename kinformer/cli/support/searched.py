"""Thresholds by layer, as `kinformer calibrate --search` finds them: tried, measured where tokens leave, and chosen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from kinformer.core.model import Metric
from kinformer.decoding.consistency import use_rule
from kinformer.lab.data.batches import device_of, on
from kinformer.lab.data.kind import Data, stream
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.evaluate import Measurement, evaluate_batches
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.thresholds import (
    MeasuredThresholds,
    coordinate_search,
    grid_search,
    refuse_large_grid,
    score_exits,
    search,
)

ROWS, LEAST = 16, 256  # rows of a batch, and of all of them where none is said
GRID = 11  # thresholds of a layer where none is said
Hear = Callable[[int], None]
By = int | Literal["grid", "coordinates"]  # so many vectors that are drawn, or what is tried of the rule's own values


class Searched(NamedTuple):
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
    kept: tuple[MeasuredThresholds, ...]
    chosen: MeasuredThresholds | None

    def value(self, one: MeasuredThresholds) -> float:
        """Its quality in the metric's own unit."""
        return _sign(self.metric) * one.quality


def rows_of(model: Any, data: Data, split: str, rows: int, length: int) -> list[Any]:
    """Batches of a split, from all over it; ValueError where it is empty, or the model does not read such data."""
    part = getattr(data, split)
    if not len(part):
        raise ValueError(f"the {split} split of {data.name} is empty; give another --split, or more data")
    there = cast(Data, replace(cast(Any, data), train=part))
    drawn = cast(RandomWindows, stream(model, there, ROWS, length, 0, rows * length))
    return [on(device_of(model), drawn.at(step)) for step in range(-(-rows // ROWS))]


def searched(
    model: Any, batches: Sequence[Any], by: By, within: float, hear: Hear, *, thresholds: int = GRID
) -> Searched:
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
        found = evaluate_batches(model, batches)
    full, metric = _kept((), found), found.metric
    if not math.isfinite(full.quality):
        raise ValueError(f"{metric.name} of the full model is {found.value} on these rows; its weights are spoiled")
    tried: list[tuple[Tensor, Tensor]] = []

    def measure(drawn: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(table.measure(drawn))
        return tried[-1]

    table = score_exits(model, batches, right=metric.better == "more")
    if by == "grid":
        best = grid_search(measure, rule.grid(thresholds), depth)
    elif by == "coordinates":
        best = coordinate_search(measure, rule.grid(thresholds), depth, least=full.quality - within)
    else:
        best = search(measure, depth, draws=by)
    kept = []
    for one in best:
        rule.leave_at(one.threshold)
        kept.append(_kept(one.threshold, evaluate_batches(model, batches)))
        hear(len(kept))
    good = [one for one in kept if one.quality >= full.quality - within]
    quality, layers = (torch.cat(column) for column in zip(*tried, strict=True))
    return Searched(metric, full, (quality, layers), tuple(kept), min(good, key=lambda one: one.layers, default=None))


def plot(found: Searched, depth: int) -> Plot:
    """Quality against mean layers: all that was tried, the best at each cost, the full model, and the choice."""
    sign = _sign(found.metric)
    quality, layers = (values.cpu().tolist() for values in found.tried)
    best = [(kept.layers, found.value(kept)) for kept in found.kept]
    curve = [
        PlotLine(
            layers,
            [sign * value for value in quality],
            f"{len(layers):,} tried, of states that nobody left",
            ".",
            "tab:gray",
            0.5,
        ),
        PlotLine([x for x, _ in best], [y for _, y in best], "the best at each cost, tokens leaving", "o-", "tab:blue"),
    ]
    if found.chosen is not None:
        curve.append(PlotLine([found.chosen.layers], [found.value(found.chosen)], "chosen", "D", "tab:red"))
    return Plot(
        "",
        f"layers a token takes on average, of {depth}",
        found.metric.name,
        curve,
        levels=((found.value(found.full), "all layers"),),
        xlim=(0.9, depth + 0.1),
    )


def lines(found: Searched, depth: int, within: float) -> list[str]:
    """What is said of it, a line for each kept vector, and of the choice."""
    name = found.metric.name
    told = [
        f"thresholds {', '.join(f'{t:.3g}' for t in one.threshold)}: {name} {found.value(one):.4f}, "
        f"{one.layers:.2f} layers"
        for one in found.kept
    ]
    whole = f"{name} of all {depth} layers is {found.value(found.full):.4f}"
    if found.chosen is None:
        return [
            *told,
            f"{whole}, and none of {len(found.tried[1]):,} comes within {within:g} of it: no token leaves early",
        ]
    its = f"{found.chosen.layers:.2f} layers in the mean at {found.value(found.chosen):.4f}"
    return [*told, f"{whole}; the cheapest within {within:g} of it takes {its}, which nothing proves of other data"]


def _sign(metric: Metric) -> int:
    return 1 if metric.better == "more" else -1


def _kept(threshold: tuple[float, ...], found: Measurement) -> MeasuredThresholds:
    return MeasuredThresholds(threshold, _sign(found.metric) * found.value, found.extras["layers"])
