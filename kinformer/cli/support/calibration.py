"""Calibration of early exits: thresholds from Learn then Test or from a search by layer."""

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
# the threshold, the record for exits.json, and the lines to print
Calibrated = tuple[Threshold | None, dict[str, Any], list[str]]


class CalibrationSettings(NamedTuple):
    """Options of `kinformer calibrate`.

    split: the split of the data to calibrate on.
    samples: number of prompts (Learn then Test) or of rows to measure (search); the method's default if None.
    length: tokens of a prompt or row.
    tokens: tokens to generate for each prompt (Learn then Test).
    delta: largest allowed mean loss of the generated texts (Learn then Test).
    epsilon: allowed probability that the mean loss is above delta (Learn then Test).
    consistency: the loss of a text that is generated with early exits. "textual" is its distance from the full model's
        text. "risk" is its distance from the reference text minus the full model's distance, but at least 0.
    thresholds: number of exit thresholds to choose from; for a search, number of values for each layer.
    search: method to search one threshold per layer: a number of random combinations, "grid" or "coordinates"; if None,
        Learn then Test finds one threshold for all layers.
    within: largest allowed loss of the metric compared with the full model, in units of the metric (search).
    """

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
    """Refuse to replace a proven exit threshold of these weights by a search, which proves nothing.

    folder: the folder of the model, which may hold exits.json.
    model: the model of that folder.

    Errors: UserError if exits.json holds a threshold of Learn then Test.
    """
    try:
        record = calibration(folder, model)
    except (CalibrationError, OSError):  # the file is useless, so replacing it loses nothing
        return
    if record is not None and record.get("by") == PROVEN:
        raise UserError(
            f"{folder / FILE} holds a proven threshold, for delta {record.get('delta')} and epsilon "
            f"{record.get('epsilon')}, but a search proves nothing. Give --overwrite to replace the file, or move it "
            "first"
        )


def calibrate_by_test(model: Any, data: Any, settings: CalibrationSettings) -> Calibrated:
    """Find an exit threshold with a proven bound on the mean loss of texts generated with early exits.

    model: a model with early exits.
    data: the data with the prompts.
    settings: the options of the command.

    The method is Learn then Test. The loss of a text is its distance from the full model's text, or the loss that
    `settings.consistency` names. Thresholds are tested from late exits to early ones. Returns the last proven threshold
    (None if none is proven), its record for exits.json and the lines of the report. Errors: UserError if the data does
    not fit the model or has too few prompts.
    """
    grid, delta, epsilon = model.exits.rule.grid(settings.thresholds), settings.delta, settings.epsilon
    with from_user(ValueError, LookupError), print_warnings():
        prompts = _prompts(model, data, settings.split, settings.samples or 1, settings.length, settings.tokens)
        result, layers = _test_thresholds(model, prompts, settings.consistency, grid, delta, epsilon)
    of = {"by": PROVEN, "data": data.name, "split": settings.split, "samples": len(prompts.prompts)}
    promise = {"tokens": prompts.tokens, "delta": delta, "epsilon": epsilon, "consistency": settings.consistency}
    record = {**of, **promise, "layers": layers, "tested": [test._asdict() for test in result.tested]}
    return result.threshold, record, _lines(result, model.exits.rule, (layers, len(model.exits.layers)), delta, epsilon)


def calibrate_by_search(model: Any, data: Any, settings: CalibrationSettings, folder: Path) -> Calibrated:
    """Search one exit threshold for each layer, and draw the tried thresholds in exits.png.

    model: a model with early exits.
    data: the data to measure on.
    settings: the options of the command.
    folder: the folder for exits.png.

    Returns the thresholds that use the fewest layers and lose at most `settings.within` of the metric, or None if there
    are none. Also returns their record for exits.json and the lines of the report. Errors: UserError if the data does
    not fit the model, or the picture cannot be written.
    """
    depth, rows, by = len(model.exits.layers), settings.samples or LEAST, settings.search or 1
    with from_user(ValueError, LookupError), print_warnings():
        batches = rows_of(model, data, settings.split, rows, settings.length)
        with progress("searching", SEGMENTS, "candidates at most") as tell:
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
    """Refuse a model without early exits, or with an exit rule that has no threshold.

    model: the model to calibrate.

    Errors: UserError, which names members whose exit thresholds can be found.
    """
    body = exits_of(model)
    if body is None:
        raise UserError(
            f"cannot calibrate this {model.member.name}: it has no early exits. "
            f"Calibrate one of {', '.join(_members_with_exits())}"
        )
    try:
        body.rule.grid(2)
    except ValueError as error:
        raise UserError(
            f"cannot calibrate this {model.member.name}: its exit rule has no threshold. Train a member with a rule "
            "that has one, such as depth_adaptive classifier=geometric"
        ) from error


def _members_with_exits() -> list[str]:
    """The names of the members whose return annotation is a model with early exits."""

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
    """The result of the test on these prompts, and the mean number of layers of a token at its threshold."""
    body, count, layers = model.exits, len(prompts.prompts), dict[Any, float]()
    print(
        f"{count:,} texts are generated once with all layers, then once with each of up to {len(grid)} thresholds, "
        f"until one is not proven. Fewer --samples (at least {fewest_losses(delta, epsilon):,}), --thresholds or "
        "--tokens take less time",
        file=sys.stderr,
    )
    with progress("calibrating", count * (len(grid) + 1), "texts at most") as tell:
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
    """The lines of the report; `layers` holds the mean number of layers of a token, and the number of all layers."""
    lines = [
        f"threshold {threshold_text(rule, test.threshold)}: mean loss {test.risk:.4f}, p {test.p:.3g}, "
        f"{'proven' if test.p <= epsilon else 'not proven'}"
        for test in result.tested
    ]
    if result.threshold is None:
        return [*lines, f"no threshold is proven to keep the mean loss at {delta:g}, so no token exits early"]
    last = (
        f"tokens exit early at threshold {threshold_text(rule, result.threshold)}, on average after {layers[0]:.2f} of "
        f"{layers[1]} layers; the mean loss exceeds {delta:g} with probability at most {epsilon:g}"
    )
    return [*lines, last]
