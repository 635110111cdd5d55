"""`kinformer calibrate DIR --data SPEC --delta D --epsilon E`: how early tokens may leave, proven on data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.options import MOST, Data, Device, Json, Own, Split, count, flag, trained_folder
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.calibrate.threshold_search import By

PROMPT, TOKENS, WITHIN = 64, 32, 0.02
TESTED, GRID = 21, 11  # thresholds to choose from: of a test, and of each layer of a search


def _parse_search(text: str) -> int | str:
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
    folder: Annotated[Path, trained_folder("of a member with exits, like calm.")],
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
            parser=_parse_search,
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help=f"With --search: how much worse than the full model the metric may be; default: {WITHIN:g}."),
    ] = None,
    samples: Annotated[int | None, count("How many texts; twice as many as it takes unless given.")] = None,
    thresholds: Annotated[
        int | None,
        typer.Option(
            help=f"Number of threshold values to choose from; default: {TESTED}. With --search grid or coordinates: "
            f"number of values for each layer; default: {GRID}.",
            min=2,
            max=1000,
        ),
    ] = None,
    split: Split = "valid",
    length: Annotated[int, count("Of a text: tokens that each begins with.")] = PROMPT,
    tokens: Annotated[int, count("Of a text: tokens that are written.")] = TOKENS,
    overwrite: Annotated[bool, flag("overwrite", "Of --search: also what was proven.")] = False,
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
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support import calibration
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_for_model
    from kinformer.cli.support.training import refuse_length
    from kinformer.decoding.calibrated_threshold import FILE, save_calibration
    from kinformer.lab.data.text import TextData

    by = cast("By | None", search)  # as the option's callback reads it
    within = _check_search_options(ctx, by, within, overwrite)
    if search is None:
        samples = _text_count(samples, delta, epsilon)
    model = load_model(folder, member, device)
    calibration.refuse_without_exits(model)
    if search is not None and not overwrite:
        calibration.refuse_replacing_proof(folder, model)
    dataset = read_for_model(model, data, folder)
    if search is None and not isinstance(dataset, TextData):
        refuse_useless(ctx, f"on {dataset.noun}, whose rows set the lengths of prompts and answers", "length", "tokens")
    refuse_length(ctx, dataset)
    thresholds = thresholds or (TESTED if search is None else GRID)
    settings = calibration.CalibrationSettings(
        split, samples, length, tokens, delta, epsilon, consistency, thresholds, by, within
    )
    if search is None:
        threshold, record, lines = calibration.calibrate_by_test(model, dataset, settings)
    else:
        threshold, record, lines = calibration.calibrate_by_search(model, dataset, settings, folder)
    with from_user(OSError, code=FAILED):
        save_calibration(folder, model, threshold, record)
    if as_json:
        print(json.dumps({"folder": str(folder), "threshold": threshold, **record}, indent=2))
    else:
        print("\n".join(lines) + f"; noted in {folder / FILE}")


def _text_count(samples: int | None, delta: float, epsilon: float) -> int:
    """How many texts are tested; UserError where they are too few to prove anything."""
    from kinformer.lab.calibrate.learn_then_test import fewest_losses

    with from_user(ValueError):
        least = fewest_losses(delta, epsilon)
    if samples is not None and samples < least:
        raise UserError(
            f"{samples:,} texts prove nothing at delta {delta:g} and epsilon {epsilon:g}; give --samples {least:,} or "
            "more, or allow more"
        )
    return 2 * least if samples is None else samples


def _check_search_options(ctx: typer.Context, search: "By | None", within: float | None, overwrite: bool) -> float:
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
