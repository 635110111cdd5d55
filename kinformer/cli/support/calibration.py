"""Calibration of exits: thresholds tested by Learn then Test or searched by layer, and what is told of them."""

import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from kinformer.cli.errors import print_warnings
from kinformer.cli.support.calibrated_exits import threshold_text
from kinformer.cli.support.progress_bar import progress
from kinformer.core.discover import members
from kinformer.decoding.calibrated_threshold import FILE, CalibrationError, calibration
from kinformer.decoding.consistency import losses, use_rule, write_texts
from kinformer.decoding.layers_used import exits_of
from kinformer.decoding.prompts import Prompts
from kinformer.lab.calibrate.learn_then_test import LearnThenTestResult, fewest_losses, learn_then_test
from kinformer.lab.calibrate.search_methods import SEGMENTS
from kinformer.lab.calibrate.threshold_search import LEAST, By, result_lines, rows_of, search_plot, search_thresholds
from kinformer.lab.data.data_fits_model import refuse_other_tokens, refuse_unread
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.models.support.exit_losses import ManyExits
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.threshold import Threshold
from kinformer.pages.plots import save_plots

PROVEN = "learn then test"
Calibrated = tuple[Threshold | None, dict[str, Any], list[str]]  # what is told in the file, and in lines


class CalibrationSettings(NamedTuple):
    """What is asked for."""

    split: str
    samples: int | None
    length: int
    tokens: int
    delta: float
    epsilon: float
    consistency: Literal["textual", "risk"]
    thresholds: int
    search: By | None
    within: float


def refuse_replacing_proof(folder: Path, model: Any) -> None:
    """UserError where a threshold was proven for these weights, which a search would overwrite with what is not."""
    try:
        record = calibration(folder, model)
    except (CalibrationError, OSError):  # of no use to anyone
        return
    if record is not None and record.get("by") == PROVEN:
        raise UserError(
            f"{folder / FILE} holds what was proven, at delta {record.get('delta')} and epsilon "
            f"{record.get('epsilon')}, and a search proves nothing; give --overwrite, or keep it elsewhere"
        )


def calibrate_by_test(model: Any, data: Any, settings: CalibrationSettings) -> Calibrated:
    """By Learn then Test."""
    grid, delta, epsilon = model.exits.rule.grid(settings.thresholds), settings.delta, settings.epsilon
    with from_user(ValueError, LookupError), print_warnings():
        prompts = _prompts(model, data, settings.split, settings.samples or 1, settings.length, settings.tokens)
        result, layers = _test_thresholds(model, prompts, settings.consistency, grid, delta, epsilon)
    of = {"by": PROVEN, "data": data.name, "split": settings.split, "samples": len(prompts.prompts)}
    promise = {"tokens": prompts.tokens, "delta": delta, "epsilon": epsilon, "consistency": settings.consistency}
    record = {**of, **promise, "layers": layers, "tested": [test._asdict() for test in result.tested]}
    return result.threshold, record, _lines(result, model.exits.rule, (layers, len(model.exits.layers)), delta, epsilon)


def calibrate_by_search(model: Any, data: Any, settings: CalibrationSettings, folder: Path) -> Calibrated:
    """By a search of thresholds by layer, which also draws a picture."""
    depth, rows, by = len(model.exits.layers), settings.samples or LEAST, settings.search or 1
    with from_user(ValueError, LookupError), print_warnings():
        batches = rows_of(model, data, settings.split, rows, settings.length)
        with progress("searching", SEGMENTS, "thresholds, at most") as tell:
            result = search_thresholds(model, batches, by, settings.within, tell, thresholds=settings.thresholds)
    name = {"grid": "grid search", "coordinates": "coordinate search"}.get(str(by), "random search")
    of = {"by": name, "data": data.name, "split": settings.split, "samples": rows, "within": settings.within}
    numbers = {"draws": len(result.tried[1]), "metric": result.metric.name, "full": result.value(result.full)}
    candidates = [{"threshold": x.threshold, "value": result.value(x), "layers": x.layers} for x in result.candidates]
    record = {**of, **numbers, "layers": (result.chosen or result.full).layers, "kept": candidates}
    with from_user(OSError, code=FAILED):
        save_plots((search_plot(result, depth),), "", folder / "exits.png", size=(7, 4.2))
    threshold = None if result.chosen is None else result.chosen.threshold
    return threshold, record, result_lines(result, depth, settings.within)


def refuse_without_exits(model: Any) -> None:
    """UserError for a model that nothing leaves early, or whose rule has no threshold; it names members that can."""
    body = exits_of(model)
    if body is None:
        raise UserError(
            f"no token of this {model.member.name} leaves early; calibrate one of {', '.join(_members_with_exits())}"
        )
    try:
        body.rule.grid(2)
    except ValueError as error:
        raise UserError(
            f"tokens of this {model.member.name} leave by no threshold that could be calibrated; train one that has "
            "them, such as depth_adaptive classifier=geometric"
        ) from error


def _members_with_exits() -> list[str]:
    """Members whose models have exits, by what they say they return."""

    def returned_types(function: Any) -> tuple[Any, ...]:
        hint = get_type_hints(function)["return"]
        return get_args(hint) or (hint,)

    return [
        name
        for name, function in members().items()
        if any(isinstance(returned, type) and issubclass(returned, ManyExits) for returned in returned_types(function))
    ]


def _prompts(model: Any, data: Any, split: str, count: int, length: int, tokens: int) -> Prompts:
    refuse_unread(model, data)
    refuse_other_tokens(model, data)
    prompts: Prompts = data.prompts(model, split, count, length, tokens)
    return prompts


def _test_thresholds(
    model: Any, prompts: Prompts, by: Literal["textual", "risk"], grid: list[Any], delta: float, epsilon: float
) -> tuple[LearnThenTestResult, float]:
    """What is found on these texts, and the layers that a token takes with it."""
    body, count, layers = model.exits, len(prompts.prompts), dict[Any, float]()
    print(
        f"{count:,} texts are written once by all layers, and again by each of up to {len(grid)} thresholds until one "
        f"is not proven; fewer --samples (from {fewest_losses(delta, epsilon):,}), --thresholds or --tokens take "
        "less time",
        file=sys.stderr,
    )
    with progress("calibrating", count * (len(grid) + 1), "texts, at most") as tell:
        with use_rule(body, NeverExit()):
            full = write_texts(model, prompts, tell)

        def losses_at(threshold: Any) -> list[float]:
            body.rule.leave_at(threshold)
            done = count * (len(layers) + 1)
            early = write_texts(model, prompts, lambda written_now: tell(done + written_now))
            layers[threshold] = early.layers
            return losses(by, prompts, early.texts, full.texts)

        result = learn_then_test(grid, losses_at, delta, epsilon)
    return result, full.layers if result.threshold is None else layers[result.threshold]


def _lines(
    result: LearnThenTestResult, rule: Any, layers: tuple[float, int], delta: float, epsilon: float
) -> list[str]:
    """What was tested, and what came of it; `layers` are those that a token takes, and all of them."""
    lines = [
        f"threshold {threshold_text(rule, test.threshold)}: mean loss {test.risk:.4f}, p {test.p:.3g}, "
        f"{'proven' if test.p <= epsilon else 'not proven'}"
        for test in result.tested
    ]
    if result.threshold is None:
        return [*lines, f"no threshold keeps the loss at {delta:g}, so no token leaves early: the full model"]
    last = (
        f"tokens leave at {threshold_text(rule, result.threshold)}, after {layers[0]:.2f} of {layers[1]} layers in the "
        f"mean; the loss is at most {delta:g}, but for a chance of {epsilon:g}"
    )
    return [*lines, last]
