"""`kinformer calibrate DIR --data SPEC --delta D --epsilon E`: how early tokens may leave, proven on data."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from kinformer.cli.errors import noted, refuse_useless
from kinformer.cli.options import MOST, Data, Device, Json, Own
from kinformer.cli.support import option_checks as early
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.decoding.prompts import Prompts
    from kinformer.lab.calibrate.threshold_search import By
    from kinformer.nn.exits.decaying import Threshold
    from kinformer.nn.exits.learn_then_test import Found

PROMPT, TOKENS, WITHIN = 64, 32, 0.02
TESTED, GRID = 21, 11  # thresholds to choose from: of a test, and of each layer of a search
PROVEN = "learn then test"
Calibrated = tuple["Threshold | None", dict[str, Any], list[str]]  # what is told in the file, and in lines


class CalibrationSettings(NamedTuple):
    """What is asked for."""

    split: str
    samples: int | None
    length: int
    tokens: int
    delta: float
    epsilon: float
    consistency: Literal["textual", "risk"]
    thresholds: int | None
    search: "By | None"
    within: float


def _searching(text: str) -> int | str:
    """How thresholds by layer are searched; UserError for neither a number of draws nor a kind of search."""
    if text in ("grid", "coordinates"):
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise UserError(
            f"--search {text}: give a number of draws from 1 to {MOST:,}, grid for every combination of --thresholds, "
            "or coordinates to search layer by layer"
        )
    return int(text)


def calibrate(
    ctx: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(callback=early.trained, help="A folder that train wrote, of a member with exits, like calm."),
    ],
    *,
    data: Data,
    delta: Annotated[float, typer.Option(help="The mean loss that is allowed, between 0 and 1.")] = 0.1,
    epsilon: Annotated[float, typer.Option(help="How often it may be more, between 0 and 1.")] = 0.05,
    consistency: Annotated[
        Literal["textual", "risk"], typer.Option(help="Loss beside the full model's text, or beside its own loss.")
    ] = "textual",
    search: Annotated[
        Any,
        typer.Option(
            help="Search one threshold per layer instead of testing a threshold for all layers. N: try N random "
            "combinations (10000 in the paper). grid: try every combination of the --thresholds values. coordinates: "
            "change one layer at a time.",
            metavar="N|grid|coordinates",
            parser=_searching,
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help=f"With --search: how much worse than the full model the metric may be; default: {WITHIN:g}."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="How many texts; twice as many as it takes unless given.", min=1, max=MOST)
    ] = None,
    thresholds: Annotated[
        int | None,
        typer.Option(
            help=f"Number of threshold values to choose from; default: {TESTED}. With --search grid or coordinates: "
            f"number of values for each layer; default: {GRID}.",
            min=2,
            max=1000,
        ),
    ] = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Which part of the data.")] = "valid",
    length: Annotated[int, typer.Option(help="Of a text: tokens that each begins with.", min=1, max=MOST)] = PROMPT,
    tokens: Annotated[int, typer.Option(help="Of a text: tokens that are written.", min=1, max=MOST)] = TOKENS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Of --search: also what was proven.")] = False,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Find how early the tokens of a trained calm may leave, and let `generate` leave so.

    With probability 1 - epsilon over the texts, which are drawn from the split, the mean loss of what it then
    writes is at most delta. The loss of a text lies in [0, 1]: how far it is from the full model's (textual), or
    how much worse than the full model's it is (risk). Far apart is 1 - ROUGE-L, of a task's answers the share that
    differs. Texts are written by the likeliest token, and so is the promise. Thresholds are tested one after the
    other, the most careful first (Learn then Test, Hoeffding's bound); the last one that is proven is kept in
    DIR/exits.json. Where none is, no token leaves early.

    With --search N a threshold for each layer is drawn from 0 to 1, N times: the random search of depth-adaptive
    Transformers, over --samples rows of --length tokens that are read, not written. --search grid tries every
    combination of --thresholds evenly spaced thresholds, for a few layers; --search coordinates changes one layer at a
    time, for many. Of the best at each cost, drawn
    into DIR/exits.png, the cheapest is kept whose metric comes --within so much of the full model's, in bits or in
    shares of answers, whichever it is judged by. Nothing is proven by it, and what was proven is not overwritten. The
    threshold of a calm that falls while a text is written goes on falling: what is searched is the number that scales
    it.
    """
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.training import refuse_length
    from kinformer.lab.data.spec import read_spec
    from kinformer.lab.data.text import Text

    by = cast("By | None", search)  # as the option's callback reads it
    within = _read_by(ctx, by, within, overwrite)
    if search is None:
        samples = _enough(samples, delta, epsilon)
    model = load_model(folder, member, device)
    _refuse_without_exits(model)
    if search is not None and not overwrite:
        _refuse_proven(folder, model)
    tokenizer = {} if model.tokenizer is None or "tokenizer=" in data else {"tokenizer": str(folder)}
    with from_user(ValueError, OSError, ImportError), noted():
        dataset = read_spec(data, **tokenizer)
    if search is None and not isinstance(dataset, Text):
        refuse_useless(ctx, f"on {dataset.what}, whose rows set the lengths of prompts and answers", "length", "tokens")
    refuse_length(ctx, dataset)
    settings = CalibrationSettings(split, samples, length, tokens, delta, epsilon, consistency, thresholds, by, within)
    calibrated = _by_test(model, dataset, settings) if search is None else _by_search(model, dataset, settings, folder)
    threshold, record, lines = calibrated
    with from_user(OSError, code=FAILED):
        from kinformer.decoding.calibrated import FILE, save_calibration

        save_calibration(folder, model, threshold, record)
    if as_json:
        print(json.dumps({"folder": str(folder), "threshold": threshold, **record}, indent=2))
    else:
        print("\n".join(lines) + f"; noted in {folder / FILE}")


def _enough(samples: int | None, delta: float, epsilon: float) -> int:
    """How many texts are tested; UserError where they are too few to prove anything."""
    from kinformer.nn.exits.learn_then_test import fewest

    with from_user(ValueError):
        least = fewest(delta, epsilon)
    if samples is not None and samples < least:
        raise UserError(
            f"{samples:,} texts prove nothing at delta {delta:g} and epsilon {epsilon:g}; give --samples {least:,} or "
            "more, or allow more"
        )
    return 2 * least if samples is None else samples


def _read_by(ctx: typer.Context, search: "By | None", within: float | None, overwrite: bool) -> float:
    """How near a search has to come; UserError for options that are not read, and for a number without a meaning."""
    if search is None:
        if within is not None:
            raise UserError(
                "--within has no effect without --search; leave it out, or set the tested loss with --delta"
            )
        if overwrite:
            raise UserError(
                "--overwrite has no effect without --search; leave it out: a test always replaces an earlier test"
            )
        return WITHIN
    tolerance = "set the tolerance with --within"
    refuse_useless(ctx, "with --search, which proves nothing", "delta", instead=tolerance)
    refuse_useless(ctx, "with --search, which proves nothing and generates nothing", "epsilon", "consistency", "tokens")
    if isinstance(search, int):
        evenly = "search grid or coordinates"
        refuse_useless(ctx, "with --search N, which draws thresholds at random", "thresholds", instead=evenly)
    within = WITHIN if within is None else within
    if not 0 <= within < float("inf"):
        raise UserError(f"--within {within:g} is no loss of quality; give 0 or more")
    return within


def _refuse_proven(folder: Path, model: Any) -> None:
    """UserError where a threshold was proven for these weights, which a search would overwrite with what is not."""
    from kinformer.decoding.calibrated import FILE, CalibrationError, calibration

    try:
        record = calibration(folder, model)
    except (CalibrationError, OSError):  # of no use to anyone
        return
    if record is not None and record.get("by") == PROVEN:
        raise UserError(
            f"{folder / FILE} holds what was proven, at delta {record.get('delta')} and epsilon "
            f"{record.get('epsilon')}, and a search proves nothing; give --overwrite, or keep it elsewhere"
        )


def _by_test(model: Any, data: Any, settings: CalibrationSettings) -> Calibrated:
    """By Learn then Test."""
    grid, delta, epsilon = model.exits.rule.grid(settings.thresholds or TESTED), settings.delta, settings.epsilon
    with from_user(ValueError, LookupError), noted():
        prompts = _prompts(model, data, settings.split, settings.samples or 1, settings.length, settings.tokens)
        result, layers = _tested(model, prompts, settings.consistency, grid, delta, epsilon)
    record = {
        "by": PROVEN,
        "data": data.name,
        "split": settings.split,
        "samples": len(prompts.prompts),
        "tokens": prompts.tokens,
        "delta": delta,
        "epsilon": epsilon,
        "consistency": settings.consistency,
        "layers": layers,
        "tested": [test._asdict() for test in result.tested],
    }
    return result.threshold, record, _lines(result, model.exits.rule, (layers, len(model.exits.layers)), delta, epsilon)


def _by_search(model: Any, data: Any, settings: CalibrationSettings, folder: Path) -> Calibrated:
    """By a search of thresholds by layer, which also draws a picture."""
    from kinformer.cli.support.progress_bar import progress
    from kinformer.lab.calibrate.threshold_search import LEAST, result_lines, rows_of, search_plot, search_thresholds
    from kinformer.nn.exits.thresholds import SEGMENTS
    from kinformer.pages.plots import save_plots

    depth, rows, by = len(model.exits.layers), settings.samples or LEAST, settings.search or 1
    with from_user(ValueError, LookupError), noted():
        batches = rows_of(model, data, settings.split, rows, settings.length)
        with progress("searching", SEGMENTS, "thresholds, at most") as tell:
            result = search_thresholds(
                model, batches, by, settings.within, tell, thresholds=settings.thresholds or GRID
            )
    record = {
        "by": {"grid": "grid search", "coordinates": "coordinate search"}.get(str(by), "random search"),
        "data": data.name,
        "split": settings.split,
        "samples": rows,
        "within": settings.within,
        "draws": len(result.tried[1]),
        "metric": result.metric.name,
        "full": result.value(result.full),
        "layers": (result.chosen or result.full).layers,
        "kept": [
            {"threshold": candidate.threshold, "value": result.value(candidate), "layers": candidate.layers}
            for candidate in result.candidates
        ],
    }
    with from_user(OSError, code=FAILED):
        save_plots((search_plot(result, depth),), "", folder / "exits.png", size=(7, 4.2))
    return (
        None if result.chosen is None else result.chosen.threshold,
        record,
        result_lines(result, depth, settings.within),
    )


def _refuse_without_exits(model: Any) -> None:
    """UserError for a model that nothing leaves early, or whose rule has no threshold; it names members that can."""
    from kinformer.decoding.layers_used import exits_of

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
    from typing import get_args, get_type_hints

    from kinformer.core.discover import members
    from kinformer.models.support.exits import ManyExits

    def returned_types(function: Any) -> tuple[Any, ...]:
        hint = get_type_hints(function)["return"]
        return get_args(hint) or (hint,)

    return [
        name
        for name, function in members().items()
        if any(isinstance(returned, type) and issubclass(returned, ManyExits) for returned in returned_types(function))
    ]


def _prompts(model: Any, data: Any, split: str, count: int, length: int, tokens: int) -> "Prompts":
    from kinformer.lab.data.kind import refuse_other_tokens, refuse_unread

    refuse_unread(model, data)
    refuse_other_tokens(model, data)
    prompts: Prompts = data.prompts(model, split, count, length, tokens)
    return prompts


def _tested(
    model: Any, prompts: "Prompts", by: Literal["textual", "risk"], grid: list[Any], delta: float, epsilon: float
) -> "tuple[Found, float]":
    """What is found on these texts, and the layers that a token takes with it."""
    from kinformer.cli.support.progress_bar import progress
    from kinformer.decoding.consistency import losses, ruled, written
    from kinformer.nn.exits.learn_then_test import fewest, learn_then_test
    from kinformer.nn.exits.nobody import Nobody

    body, count, layers = model.exits, len(prompts.prompts), dict[Any, float]()
    print(
        f"{count:,} texts are written once by all layers, and again by each of up to {len(grid)} thresholds until one "
        f"is not proven; fewer --samples (from {fewest(delta, epsilon):,}), --thresholds or --tokens take less time",
        file=sys.stderr,
    )
    with progress("calibrating", count * (len(grid) + 1), "texts, at most") as tell:
        with ruled(body, Nobody()):
            full = written(model, prompts, tell)

        def losses_at(threshold: Any) -> list[float]:
            body.rule.leave_at(threshold)
            done = count * (len(layers) + 1)
            early = written(model, prompts, lambda written_now: tell(done + written_now))
            layers[threshold] = early.layers
            return losses(by, prompts, early.texts, full.texts)

        result = learn_then_test(grid, losses_at, delta, epsilon)
    return result, full.layers if result.threshold is None else layers[result.threshold]


def _lines(result: "Found", rule: Any, layers: tuple[float, int], delta: float, epsilon: float) -> list[str]:
    """What was tested, and what came of it; `layers` are those that a token takes, and all of them."""
    from kinformer.cli.support.calibrated_exits import threshold_text

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
